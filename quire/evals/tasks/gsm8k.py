"""GSM8K: word problems whose answer is one number.

The training questions, from which lm-eval draws its examples, are not in the data; see `gsm8k`.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.evals.tasks import dataset_files
from quire.evals.tasks.task import Examples, Task
from quire.jobs.input.files import find_files, read_rows

_DATA = "gsm8k/gold_bpb_5shot"


@cache
def _gsm8k_docs() -> list[dict[str, Any]]:
    return [
        {"question": d["question"], "answer": d["answer"]} for d in dataset_files.json_rows(_DATA)
    ]


def gsm8k(examples_file: Path | None = None) -> Task:
    """Five worked examples, then the question; the number after "#### " is the answer."""
    if examples_file is not None:
        examples = Examples(partial(_read_examples, examples_file), f"those of {examples_file}")
    else:
        examples = Examples(
            _gsm8k_docs,
            "drawn from the test questions, the one being asked left out (the training questions "
            "are not in the data; --examples FILE gives them)",
            with_questions=True,
        )
    return Task(
        name="gsm8k",
        kind="generate",
        load=_gsm8k_docs,
        prompt=lambda doc: f"Question: {doc['question']}\nAnswer:",
        target=lambda doc: str(doc["answer"]),
        truth=lambda doc: str(doc["answer"]),
        scorers=("number",),
        examples=examples,
        shots=5,
        stop=("Question:", "</s>", "<|im_end|>"),
    )


def _read_examples(path: Path) -> list[dict[str, Any]]:
    docs = []
    for row in read_rows(find_files([str(path)])):
        doc = row.values or {}
        if row.error is not None or not {"question", "answer"} <= doc.keys():
            why = row.error.message if row.error is not None else "one of them is missing"
            raise InvalidOption(
                f"{path}: each row of --examples has a question and an answer; of row {row.number} "
                f"{why}",
                parameter="examples",
                value=str(path),
            )
        docs.append({"question": doc["question"], "answer": doc["answer"]})
    return docs


@cache
def _chains_of_thought() -> list[dict[str, Any]]:
    """The eight worked examples before each question in the data."""
    turns = dataset_files.first_context(_DATA).split("\n\n")[:-1]
    docs = []
    for turn in turns:
        question, answer = turn.removeprefix("Question: ").split("\nAnswer: ")
        docs.append(
            {"question": question, "target": answer.replace("So the answer is", "The answer is")}
        )
    return docs


def gsm8k_cot() -> Task:
    """Eight fixed worked examples; the number after "The answer is" is the answer."""
    return Task(
        name="gsm8k_cot",
        kind="generate",
        load=_gsm8k_docs,
        prompt=lambda doc: f"Q: {doc['question']}\nA:",
        target=lambda doc: str(doc["target"]),
        truth=lambda doc: str(doc["answer"]).split("####")[-1].strip(),
        scorers=("number",),
        examples=Examples(_chains_of_thought, "eight fixed ones", first=True),
        shots=8,
        stop=("Q:", "</s>", "<|im_end|>"),
        pattern=r"The answer is (\-?[0-9\.\,]+).",
    )
