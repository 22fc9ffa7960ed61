"""Scores of stored runs: what is counted, what is kept, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quire.errors import CorruptJob, InvalidOption
from quire.evals.scoring.named import ScorerOptions, scorers_by_name
from quire.evals.scoring.run import score_run
from quire.evals.scoring.scores import (
    MetricScore,
    ScoreOptions,
    read_row_scores,
    read_scores,
    score,
)
from quire.jobs.output.results import StoredRun
from quire.jobs.store.record import ResultRecord
from tests.jobs.stored import stored_job

ROWS = [
    {"question": "1+1?", "answer": "2", "kind": "sum"},
    {"question": "2*3?", "answer": "6", "kind": "product"},
    {"question": "2+3?", "answer": "5", "kind": "sum"},
    {"question": "?", "answer": None, "kind": "sum"},
]


def scored(output: Path, by: str = "exact", **options: object) -> MetricScore:
    chosen = ScoreOptions(**{"truth": "answer", **options})
    [found] = score(StoredRun.open(output), scorers_by_name([by], ScorerOptions()), chosen)
    return found


def test_a_run_is_scored_from_what_is_stored(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS, ["2", "5", "5", "x"])
    found = scored(output, groups=("kind",))
    assert found.mean.value == pytest.approx(2 / 3)
    assert found.mean.stderr == pytest.approx((1 / 3) ** 0.5 / 3**0.5)
    assert (found.mean.num, found.num_unscored, found.num_failed) == (3, 1, 0)
    assert found.first_problem == "row 3: no truth to judge it by"
    assert {value: mean.value for value, mean in found.groups["kind"].items()} == {
        "product": 0.0,
        "sum": 1.0,
    }
    home = StoredRun.open(output).home
    assert read_scores(home) == [found]
    rows = list(read_row_scores(home, "exact_match"))
    assert [row.value for row in rows] == [1.0, 0.0, 1.0, None]
    assert [row.read for row in rows] == ["2", "5", "5", None]


def test_a_failed_row_counts_as_wrong_unless_left_out(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:2], ["2", RuntimeError("boom")])
    assert scored(output).mean.value == 0.5
    left_out = scored(output, skip_failed=True)
    assert (left_out.mean.value, left_out.mean.num, left_out.num_failed) == (1.0, 1, 1)


def test_several_samples_are_one_observation_and_give_pass_at_k(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:2], [["2", "3"], ["5", "5"]], sampling={"n": 2})
    found = scored(output, pass_at=(1, 2))
    assert (found.mean.value, found.mean.num) == (0.25, 2)
    assert {k: mean.value for k, mean in found.pass_at.items()} == {"1": 0.25, "2": 0.5}
    with pytest.raises(InvalidOption, match="pass@3 needs at least 3 samples"):
        scored(output, pass_at=(3,))
    with pytest.raises(InvalidOption, match="at least 1, not -1"):
        scored(output, pass_at=(-1,))


def test_another_scoring_adds_its_metric_and_replaces_its_own(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:2], ["2", "6"])
    scored(output)
    scored(output, by="f1")
    scored(output, by="exact")
    home = StoredRun.open(output).home
    assert [found.metric for found in read_scores(home)] == ["exact_match", "f1"]


def test_an_unfinished_scoring_leaves_the_old_scores(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:2], ["2", "6"])
    before = scored(output)
    with pytest.raises(InvalidOption, match="no column 'reply'; it has question, answer, kind"):
        scored(output, truth="reply")
    home = StoredRun.open(output).home
    assert read_scores(home) == [before]
    assert [row.value for row in read_row_scores(home, "exact_match")] == [1.0, 1.0]


def test_a_row_that_lacks_the_truth_has_no_score(tmp_path: Path) -> None:
    output = stored_job(tmp_path, [ROWS[0], {"question": "no answer to it"}], ["2", "6"])
    found = scored(output)
    assert (found.mean.num, found.num_unscored) == (1, 1)


def test_a_truth_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:1], ["2"])
    with pytest.raises(InvalidOption, match="needs --truth COLUMN"):
        scored(output, truth=None)
    assert scored(output, by="json", truth=None).mean.value == 1.0


def test_a_function_that_raises_costs_only_its_rows(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:3], ["2", "no", "5"])
    file = tmp_path / "mine.py"
    file.write_text("def as_number(output, row): return float(output)\n")
    found = scored(output, by=f"{file}:as_number", truth=None)
    assert (found.mean.value, found.mean.num, found.num_unscored) == (3.5, 2, 1)
    assert "row 1: as_number raised ValueError" in (found.first_problem or "")


def test_groups_are_things_that_rows_share(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a", "id": number} for number in range(1001)]
    output = stored_job(tmp_path, rows, ["a"] * 1001)
    with pytest.raises(InvalidOption, match="more than 1000 different values"):
        scored(output, groups=("id",))


def test_multiple_choice_is_scored_by_log_probabilities(tmp_path: Path) -> None:
    rows = [{"q": "?", "ends": [" no", " certainly not"], "answer": 1}]
    record = ResultRecord(
        *(0, "0:0", "c", 1),
        outputs=(" no",),
        finish_reasons=("scored",),
        extra={"continuations": {"logprobs": [-3.0, -4.0]}},
    )
    output = stored_job(
        tmp_path, rows, [record], kind="choices", prompt="{{ q }}", continuations="ends"
    )
    assert scored(output, by="acc").mean.value == 0.0
    assert scored(output, by="acc_norm").mean.value == 1.0


def test_a_table_of_anyone_can_be_scored(tmp_path: Path) -> None:
    table = tmp_path / "theirs.csv"
    table.write_text("answer,reply\n2,2\n6,5\n")
    run = StoredRun.open(table, output_column="reply")
    [found] = score(run, scorers_by_name(["exact"], ScorerOptions()), ScoreOptions(truth="answer"))
    assert found.mean.value == 0.5
    assert (tmp_path / "theirs.csv.scores" / "scores.json").is_file()
    with pytest.raises(InvalidOption, match="has no column 'output' .it has answer, reply"):
        list(StoredRun.open(table).rows())


def test_a_program_scores_in_one_call(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:3], ["2", "5", "5"])
    [found] = score_run(output, ["exact"], truth="answer", groups=["kind"])
    assert found == scored(output, groups=("kind",))


def test_damaged_scores_are_told(tmp_path: Path) -> None:
    output = stored_job(tmp_path, ROWS[:1], ["2"])
    home = StoredRun.open(output).home
    (home / "scores.json").write_text(json.dumps({"metrics": [{"metric": "f1"}]}))
    with pytest.raises(CorruptJob, match="does not read as scores"):
        read_scores(home)


def test_scoring_brings_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; import quire.evals.scoring.scores, quire.evals.scoring.named;"
        "print(sorted({'torch', 'transformers', 'quire.llm', 'quire.engine', 'pyarrow'} "
        "& set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
