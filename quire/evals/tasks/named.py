"""The tasks by name; each follows lm-eval 0.4.13's task of the same name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from quire.errors import InvalidOption
from quire.evals.tasks.gsm8k import gsm8k, gsm8k_cot
from quire.evals.tasks.humaneval import NAME as HUMANEVAL
from quire.evals.tasks.humaneval import humaneval
from quire.evals.tasks.multiple_choice import arc, hellaswag, mmlu
from quire.evals.tasks.subjects import FIELDS, SUBJECTS
from quire.evals.tasks.task import Task

_SINGLE: dict[str, Callable[[], Task]] = {
    "gsm8k": gsm8k,
    "gsm8k_cot": gsm8k_cot,
    "arc_easy": partial(arc, "Easy"),
    "arc_challenge": partial(arc, "Challenge"),
    "hellaswag": hellaswag,
    HUMANEVAL: humaneval,
}
_GROUPS: dict[str, tuple[str, ...]] = {
    "mmlu": SUBJECTS,
    **{f"mmlu_{field}": subjects for field, subjects in FIELDS.items()},
}
NAMES = (*_SINGLE, *_GROUPS)


def tasks_by_name(name: str, *, examples: Path | None = None) -> Sequence[Task]:
    """The tasks a name stands for: one, or the subjects of a group."""
    if examples is not None and name != "gsm8k":
        raise InvalidOption("--examples goes with gsm8k alone", parameter="examples")
    if name == "gsm8k":
        return [gsm8k(examples)]
    if name in _SINGLE:
        return [_SINGLE[name]()]
    if name in _GROUPS:
        return [mmlu(subject) for subject in _GROUPS[name]]
    if (subject := name.removeprefix("mmlu_")) in SUBJECTS:
        return [mmlu(subject)]
    close = difflib.get_close_matches(name, [*NAMES, *(f"mmlu_{s}" for s in SUBJECTS)], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidOption(
        f"no task is called {name!r}.{hint} Known: {', '.join(NAMES)}, and mmlu_SUBJECT",
        parameter="task",
        value=name,
    )
