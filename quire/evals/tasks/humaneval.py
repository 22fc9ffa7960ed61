"""HumanEval: functions to complete, written to a samples file for the official harness."""

from __future__ import annotations

from functools import partial

from quire.evals.tasks import dataset_files
from quire.evals.tasks.task import Examples, Task

NAME = "humaneval"


def humaneval() -> Task:
    """Functions to complete. Judging them means running them, which is not done here."""
    return Task(
        name=NAME,
        kind="generate",
        load=partial(dataset_files.json_rows, "codex_humaneval/gold_bpb_0shot"),
        prompt=lambda doc: str(doc["prompt"]),
        target=lambda doc: str(doc["canonical_solution"]),
        truth=lambda doc: f"{doc['test']}\ncheck({doc['entry_point']})",
        scorers=(),
        examples=Examples(list, "none"),
        stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
        max_tokens=1024,
        doc_id=lambda doc: str(doc["task_id"]),
    )
