"""A model as the judge. Judging is a job over the stored answers, so it can be continued, too.

Each answer becomes a row with `prompt`, `answer`, `truth` and `row` (the input's columns). A
structured output limits the judge's reply to a few words, and each word stands for a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.evals.scoring.scorer import Answer, Verdict
from quire.jobs.job import Job
from quire.jobs.output.results import StoredRun

NAME = "judge"
DEFAULT_WORDS = ("yes", "no")
DEFAULT_PROMPT = """\
You are checking an answer.

Question:
{{ prompt }}
{% if truth is not none %}
The right answer:
{{ truth }}
{% endif %}
The answer to check:
{{ answer }}

Is the answer to check right? Reply with {{ words }}."""
_VALUES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "pass": 1.0, "fail": 0.0}


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The judge's model and rules. `words` are the possible replies; a number is its own value."""

    model: str
    prompt: str = DEFAULT_PROMPT
    words: tuple[str, ...] = DEFAULT_WORDS
    name: str = NAME
    options: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """The number for each word; InvalidOption for a word that stands for none."""
        found = {}
        for word in self.words:
            try:
                found[word] = _VALUES[word.lower()] if word.lower() in _VALUES else _number(word)
            except ValueError:
                raise InvalidOption(
                    f"a judge's words are numbers, or of {', '.join(_VALUES)}; not {word!r}",
                    parameter="judge_words",
                    value=word,
                ) from None
        return found


def _number(word: str) -> float:
    if not math.isfinite(value := float(word)):
        raise ValueError("no mean can be made of it")
    return value


@dataclass(frozen=True, slots=True)
class JudgeScorer:
    name: str
    verdicts: Mapping[tuple[int, int], Verdict]
    needs_truth: bool = field(default=False, init=False)

    def score(self, answer: Answer) -> Verdict | None:
        return self.verdicts.get(answer.place)


def judge(
    run: StoredRun,
    options: JudgeOptions,
    *,
    truth: str | None,
    command: Sequence[str],
) -> JudgeScorer:
    """Let the model judge every stored answer, except those that it has judged before."""
    values = options.values()
    run.home.mkdir(parents=True, exist_ok=True)
    output = run.home / f"{options.name}.jsonl"
    job = Job(
        list(_questions(run, truth, options.words)),
        output,
        model=options.model,
        prompt=options.prompt,
        choice=list(options.words),
        command=command,
        options=dict(options.options),
        reuse=True,
        max_tokens=max(len(word.encode()) for word in options.words) + 2,
    )
    job.run()
    return JudgeScorer(options.name, dict(_verdicts(output, values)))


def _questions(run: StoredRun, truth: str | None, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    said = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    for row in run.rows():
        asked = run.prompt(row)
        for sample, text in enumerate(row.record.outputs):
            yield {
                "place": [row.record.row, sample],
                "prompt": asked,
                "answer": text,
                "truth": row.columns.get(truth) if truth else None,
                "row": dict(row.columns),
                "words": said,
            }


def _verdicts(
    output: Path, values: Mapping[str, float]
) -> Iterator[tuple[tuple[int, int], Verdict]]:
    for row in StoredRun.open(output).rows():
        if row.record.failed:
            continue  # no verdict: the row has no score, and is counted
        number, sample = row.columns["place"]
        word = row.record.outputs[0].strip()
        if word in values:
            yield (number, sample), Verdict(values[word], word)
