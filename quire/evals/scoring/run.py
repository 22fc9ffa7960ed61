"""score_run: scores of a stored run in one call, for programs; `quire score` is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quire.evals.scoring.named import ScorerOptions, scorers_by_name
from quire.evals.scoring.scores import MetricScore, ScoreOptions, score
from quire.jobs.output.results import StoredRun


def score_run(
    run: str | Path | StoredRun,
    by: Sequence[str],
    *,
    truth: str | None = None,
    groups: Sequence[str] = (),
    pass_at: Sequence[int] = (),
    skip_failed: bool = False,
    options: ScorerOptions | None = None,
) -> list[MetricScore]:
    """Judge what is stored by the scorers of these names, and keep the scores beside it.

    >>> [score] = score_run("labels.jsonl", ["exact"], truth="label", groups=["language"])
    >>> score.mean.value, score.mean.stderr, score.groups["language"]["English"].value
    """
    stored = run if isinstance(run, StoredRun) else StoredRun.open(run)
    asked = ScoreOptions(truth, tuple(groups), tuple(pass_at), skip_failed)
    return score(stored, scorers_by_name(by, options or ScorerOptions()), asked)
