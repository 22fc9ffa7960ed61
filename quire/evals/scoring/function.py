"""A scorer of your own: `file.py:function`, called as function(output, row).

It runs in this process, with your rights, because you named it; nothing else in scoring runs code.
It returns the score: a number, True or False, or None for a row that cannot be judged. After an
exception the row has no score; the exceptions are counted, and one is shown.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from quire.base.boundary import refusing
from quire.errors import InvalidOption
from quire.evals.scoring.scorer import Answer, ScorerFailed, Verdict


class FunctionFailed(ScorerFailed):
    """The function raised, or returned something that is not a score."""


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    name: str
    function: Callable[[str, dict[str, object]], object]
    needs_truth: bool = field(default=False, init=False)

    def score(self, answer: Answer) -> Verdict | None:
        try:
            value = self.function(answer.text, dict(answer.row))
        except Exception as error:
            raise FunctionFailed(f"{self.name} raised {type(error).__name__}: {error}") from error
        value = value.item() if hasattr(value, "item") else value  # of numpy or torch
        if value is None:
            return None
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise FunctionFailed(f"{self.name} returned {value!r}; a score is a finite number")
        return Verdict(float(value))


def is_function(spec: str) -> bool:
    return ".py:" in spec


def load_function(spec: str) -> FunctionScorer:
    """`spec` is file.py:function."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InvalidOption(f"there is no file {file}, named by --by {spec}", parameter="by")
    module_spec = importlib.util.spec_from_file_location(f"quire_scorer_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise InvalidOption(f"{file} is not a Python file", parameter="by", value=spec)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses in the file need it to find their types
    with refusing(lambda why: _unloaded(spec, why)):
        module_spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidOption(
            f"{file} has no function {name!r}; --by takes file.py:function",
            parameter="by",
            value=spec,
        )
    return FunctionScorer(name, function)


def _unloaded(spec: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"--by {spec}: the file cannot be loaded: {why}", parameter="by", value=spec
    )
