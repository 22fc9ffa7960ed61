"""Patterns that would take forever: a user's ends with its time, and ours have no such text."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from quire.errors import InvalidOption
from quire.evals.scoring import choices, match
from quire.evals.scoring.named import ScorerOptions
from quire.evals.scoring.run import score_run
from quire.evals.scoring.scorer import Answer, Scorer
from quire.evals.scoring.user_pattern import PatternTooSlow, UserPattern
from tests.jobs.stored import stored_job


def test_a_users_pattern_finds_what_text_extract_finds() -> None:
    pattern = UserPattern(r"answer is (\w+)|= (\d+)", "--extract")
    said = "so 2 + 2 = 4, the answer is \u00e9\ud800 four"
    assert pattern.extract(said) == "4"
    assert pattern.extract(said, last=True) == "\u00e9"
    assert pattern.extract("none") is None
    assert pattern.extract("= 7" * 100_000, last=True) == "7"


def test_a_search_without_end_costs_its_time_and_the_next_one_works() -> None:
    pattern = UserPattern("(a+)+b", "--extract", seconds=0.2)
    with pytest.raises(
        PatternTooSlow, match=r"'\(a\+\)\+b' takes more than 0.2 s on an answer of 40"
    ):
        pattern.extract("a" * 40)
    assert pattern.extract("aaab") == "aaa"
    child = pattern._child
    del pattern
    gc.collect()
    assert child is not None and not child.is_alive()


@pytest.mark.parametrize("broken", ["(", "a{2,1}", "[z-a]", "a{99999999999999999999}"])
def test_a_pattern_that_does_not_read(broken: str) -> None:
    with pytest.raises(InvalidOption, match="--extract takes a Python regular expression"):
        UserPattern(broken, "--extract")


def test_such_a_row_has_no_score_and_the_others_have(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "aab"}, {"question": "q", "answer": "ab"}]
    output = stored_job(tmp_path, rows, ["a" * 40, "so: ab"])
    options = ScorerOptions(extract="(?:a+)+b")
    [found] = score_run(output, ["regex"], truth="answer", options=options)
    assert (found.mean.value, found.mean.num, found.num_unscored) == (1.0, 1, 1)
    assert "row 0: --extract" in (found.first_problem or "")


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (match.number_flexible(), "x" * 300_000 + "7"),
        (match.number_flexible(), "####" * 80_000),
        (match.number_strict(), "#### " * 80_000),
        (match.exact(), "the " * 80_000),
        (match.normalised(), "the " * 80_000),
        (match.f1(), "a " * 150_000),
        (choices.ChosenLetter(), "answer" + " " * 300_000),
        (choices.ChosenLetter(), "answer is " * 30_000 + " : * ( " * 30_000),
        (choices.ChosenLetter(), " (" * 150_000),
    ],
)
def test_a_pattern_of_ours_takes_no_square_of_the_answers_length(scorer: Scorer, said: str) -> None:
    before = time.process_time()
    scorer.score(Answer(said, "#### " + said))
    scorer.score(Answer(said, "B"))
    assert time.process_time() - before < 5.0


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        *(("The answer is: (B)", "B"), ("answer  :  **C**", "C"), ("ANSWER IS D", "D")),
        *(("answer A", "A"), ("answer isB", "B"), ("answer:\n\nC.", "C"), ("answer Bob", None)),
    ],
)
def test_the_answer_is_still_read(said: str, chosen: str | None) -> None:
    verdict = choices.ChosenLetter().score(Answer(said, "A"))
    assert verdict is not None and verdict.read == chosen
