"""ARC, HellaSwag and MMLU: the choice whose text the model finds most likely is its answer."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from quire.evals.tasks import dataset_files
from quire.evals.tasks.task import Doc, Examples, Task

_BRACKETS = re.compile(r"\[.*?\]")


def _arc_from_validation(level: str) -> list[dict[str, Any]]:
    """ARC's validation rows, in the form of its test questions."""
    return [
        {
            "id": row["id"],
            "query": f"Question: {row['question']}\nAnswer:",
            "choices": row["choices"]["text"],
            "gold": row["choices"]["label"].index(row["answerKey"]),
        }
        for row in dataset_files.arrow_rows(f"ai2_arc/ARC-{level}/validation")
    ]


def arc(level: str) -> Task:
    name = f"arc_{level.lower()}"
    return Task(
        name=name,
        kind="choices",
        load=partial(dataset_files.json_rows, f"{name}/test_rc_5shot"),
        prompt=lambda doc: str(doc["query"]),
        target=lambda doc: str(doc["choices"][doc["gold"]]),
        truth=lambda doc: int(doc["gold"]),
        choices=lambda doc: doc["choices"],
        scorers=("acc", "acc_norm"),
        examples=Examples(
            partial(_arc_from_validation, level),
            "drawn from the validation questions (the training questions are not in the data)",
        ),
        doc_id=lambda doc: str(doc["id"]),
    )


def _tidy(text: str) -> str:
    """The text without the marks of WikiHow, the source of half of the data set."""
    text = text.strip().replace(" [title]", ". ")
    return _BRACKETS.sub("", text).replace("  ", " ")


def _hellaswag_prompt(doc: Doc) -> str:
    context = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}"
    return _tidy(f"{doc['activity_label']}: {context}")


def hellaswag() -> Task:
    load = partial(dataset_files.arrow_rows, "hellaswag/none/validation")
    return Task(
        name="hellaswag",
        kind="choices",
        load=load,
        prompt=_hellaswag_prompt,
        target=lambda doc: _tidy(doc["endings"][int(doc["label"])]),
        truth=lambda doc: int(doc["label"]),
        choices=lambda doc: [_tidy(ending) for ending in doc["endings"]],
        scorers=("acc", "acc_norm"),
        examples=Examples(
            load,
            "drawn from the validation questions, the one being asked left out (the training "
            "questions are not in the data)",
            with_questions=True,
        ),
        doc_id=lambda doc: str(doc["ind"]),
    )


def _mmlu_prompt(doc: Doc) -> str:
    lines = [f"{letter}. {choice}" for letter, choice in zip("ABCD", doc["choices"], strict=True)]
    return "\n".join([doc["question"].strip(), *lines, "Answer:"])


def mmlu(subject: str) -> Task:
    data = f"hails/mmlu_no_train/{subject}"
    about = subject.replace("_", " ")
    return Task(
        name=f"mmlu_{subject}",
        kind="choices",
        load=partial(dataset_files.arrow_rows, f"{data}/test"),
        prompt=_mmlu_prompt,
        target=lambda doc: "ABCD"[doc["answer"]],
        truth=lambda doc: int(doc["answer"]),
        choices=lambda doc: ["A", "B", "C", "D"],
        scorers=("acc",),
        examples=Examples(partial(dataset_files.arrow_rows, f"{data}/dev"), "its five", first=True),
        description=(
            f"The following are multiple choice questions (with answers) about {about}.\n\n"
        ),
        group=subject,
    )
