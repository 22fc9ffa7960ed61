"""A model as the judge: a job of its own over what is stored, with the real supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import InvalidOption
from quire.evals.scoring.judge import JudgeOptions, JudgeScorer, judge
from quire.evals.scoring.scores import ScoreOptions, score
from quire.jobs.output.results import StoredRun
from tests.jobs import drive
from tests.jobs.stored import stored_job

ROWS = [
    {"question": "Capital of France?", "answer": "Paris"},
    {"question": "Capital of Spain?", "answer": "Madrid"},
    {"question": "unspeakable", "answer": "x"},
    {"question": "Capital of Italy?", "answer": "Rome"},
]
ANSWERS = ["It is Paris.", "Lisbon", "x", ValueError("failed before")]


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    command = drive.command("tests.evals.scoring.judge_engine:JudgeEngine")
    monkeypatch.setattr("quire.jobs.job.COMMAND", command)


def judged(run: StoredRun, **options: object) -> JudgeScorer:
    asked = JudgeOptions(model="judge", **options)
    return judge(run, asked, truth="answer", command=("quire", "score"))


def test_each_stored_answer_gets_a_verdict(tmp_path: Path) -> None:
    run = StoredRun.open(stored_job(tmp_path, ROWS, ANSWERS))
    [found] = score(run, [judged(run)], ScoreOptions(truth="answer"))
    # Right, wrong, a row the judge could not judge, and one that had failed: that counts as 0.
    assert (found.metric, found.mean.num, found.num_unscored, found.num_failed) == (
        "judge",
        3,
        1,
        1,
    )
    assert found.mean.value == pytest.approx(1 / 3)


def test_numbers_stand_for_themselves_and_samples_are_judged_one_by_one(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:1], [["Paris", "Rome", "paris"]], sampling={"n": 3})
    run = StoredRun.open(output)
    [found] = score(run, [judged(run, words=("5", "3", "1"))], ScoreOptions(truth="answer"))
    assert found.mean.value == pytest.approx((5 + 1 + 1) / 3)


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    run = StoredRun.open(stored_job(tmp_path, ROWS[:2], ANSWERS[:2]))
    judged(run)
    journal = run.home / "judge.jsonl.quire" / "results-00001.jsonl"
    before = journal.read_bytes()
    judged(run)
    assert journal.read_bytes() == before


def test_words_that_are_worth_nothing_known_are_refused(tmp_path: Path) -> None:
    run = StoredRun.open(stored_job(tmp_path, ROWS[:1], ANSWERS[:1]))
    with pytest.raises(InvalidOption, match="not 'good'"):
        judged(run, words=("good", "bad"))
    with pytest.raises(InvalidOption, match="not 'nan'"):
        judged(run, words=("1", "nan"))
