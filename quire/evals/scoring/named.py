"""The scorers by the names that `quire score --by` takes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.errors import InvalidOption
from quire.evals.scoring import choices, match
from quire.evals.scoring.function import is_function, load_function
from quire.evals.scoring.json_validity import json_valid
from quire.evals.scoring.scorer import Scorer
from quire.evals.scoring.user_pattern import UserPattern

# name -> description, for --help, errors and docs/scoring.md
DESCRIPTIONS = {
    "exact": "1 where the answer is the truth, but for spaces around it",
    "normalised": "the same, but for case, punctuation, articles and spaces",
    "regex": "exact match of what --extract finds in the answer",
    "number": "GSM8K's two readings of a number, strict-match and flexible-extract",
    "number-strict": 'the number after "#### ", or what --extract finds',
    "number-flexible": "the last number in the answer",
    "choice": "the letter or the text of a choice, read out of the answer",
    "acc": "the most likely choice of a multiple-choice job",
    "acc_norm": "the same, with log-probabilities per character",
    "f1": "overlap of words with the truth",
    "json": "whether the answer is JSON; with --schema, the JSON asked for",
    "judge": "a model's verdict, with --judge-model",
}


@dataclass(frozen=True, slots=True)
class ScorerOptions:
    """Options of the scorers; docs/scoring.md says which scorer uses which option."""

    extract: str | None = None
    last: bool = False
    choices: str | None = None
    schema: Path | None = None


def _pattern(options: ScorerOptions) -> UserPattern | None:
    return UserPattern(options.extract, "--extract") if options.extract else None


def _regex(options: ScorerOptions) -> list[Scorer]:
    pattern = _pattern(options)
    if pattern is None:
        raise InvalidOption("--by regex needs --extract PATTERN", parameter="extract")
    return [match.exact(pattern, last=options.last)]


_MAKERS: dict[str, Callable[[ScorerOptions], Sequence[Scorer]]] = {
    "exact": lambda o: [match.exact(_pattern(o), last=o.last)],
    "normalised": lambda o: [match.normalised(_pattern(o), last=o.last)],
    "regex": _regex,
    "number": lambda o: [match.number_strict(_pattern(o)), match.number_flexible()],
    "number-strict": lambda o: [match.number_strict(_pattern(o))],
    "number-flexible": lambda o: [match.number_flexible()],
    "choice": lambda o: [choices.ChosenLetter(o.choices, _pattern(o))],
    "acc": lambda o: [choices.acc()],
    "acc_norm": lambda o: [choices.acc_norm()],
    "f1": lambda o: [match.f1(_pattern(o), last=o.last)],
    "json": lambda o: [json_valid(o.schema)],
}


def scorers_by_name(names: Sequence[str], options: ScorerOptions) -> list[Scorer]:
    """One scorer per metric, in the order asked for; the judge is not among them."""
    found: list[Scorer] = []
    for name in names:
        if is_function(name):
            found.append(load_function(name))
        elif name in _MAKERS:
            found += _MAKERS[name](options)
        else:
            raise InvalidOption(_unknown(name), parameter="by", value=name)
    seen = {scorer.name for scorer in found}
    if len(seen) != len(found):
        raise InvalidOption(
            f"two scorers would write the same metric: {', '.join(s.name for s in found)}. "
            "Score them one after the other, or leave one away.",
            parameter="by",
        )
    return found


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, DESCRIPTIONS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"no scorer is called {name!r}.{hint} Known: {', '.join(DESCRIPTIONS)}, FILE.py:FUNCTION"
