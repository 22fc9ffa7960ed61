"""What a report says, before any browser looks at it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption
from quire.jobs.output.results import StoredRun
from quire.report.compare import compare, pairs
from quire.report.facts import Gathering
from quire.report.histogram import histogram
from quire.report.page import ASSETS, report
from quire.report.series import series_of
from tests.jobs.stored import stored_job
from tests.report.pages import HARM, harmful_run, metrics, page_of, scored_run


def data_of(html: str) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="quire-data">(.*?)</script>', html)
    found: dict[str, Any] = json.loads(text)
    return found


def rows_of(html: str) -> list[dict[str, Any]]:
    chunks = data_of(html)["rows"]["chunks"]
    return [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in chunks]


def test_time_on_the_axis_is_working_time() -> None:
    series = series_of(metrics())
    assert series.working_seconds == 118.0  # two engines of 60 lines, the hour between left out
    assert series.restarts == [59.0]
    assert (series.num_prompt_tokens, series.num_output_tokens) == (2 * 59 * 900, 2 * 59 * 300)
    throughput, requests, memory, hits = series.charts
    assert [line.label for line in throughput.lines] == ["output", "prompt"]
    assert set(throughput.lines[0].values) == {300.0}
    assert 64 in requests.lines[0].values
    assert memory.top == 100.0 and 90.0 in memory.lines[0].values
    assert set(hits.lines[0].values) == {60.0}


def test_an_engine_is_known_by_when_it_began() -> None:
    lines = [
        {"time": 12.0, "began": 10.0, "output_tokens": 20},
        {"time": 112.0, "began": 10.0, "output_tokens": 30},  # one long step is no pause
        {"time": 501.0, "began": 500.0, "output_tokens": 40},
    ]
    series = series_of(lines)
    assert series.working_seconds == 2 + 100 + 1
    assert series.restarts == [102.0]
    assert series.num_output_tokens == 30 + 40


def test_long_runs_are_thinned_and_empty_ones_have_no_charts() -> None:
    lines = [{"time": float(t), "output_tokens": t, "running": 1} for t in range(5000)]
    series = series_of(lines)
    assert len(series.seconds) <= 600
    assert series.num_output_tokens == 4999
    assert [chart.title for chart in series.charts][0].startswith("Tokens")
    assert series_of([]).charts == []
    assert series_of([{"time": 1.0}, {"running": 3}, {"time": "soon"}]).working_seconds == 0


@pytest.mark.parametrize("values", [[1, 1, 1], list(range(1000)), [1, 10, 10_000], [0, 0, 5]])
def test_every_value_is_in_one_bin(values: list[int]) -> None:
    found = histogram(values)
    assert found is not None
    assert sum(found.counts) == len(values)
    assert list(found.edges) == sorted(set(found.edges))
    assert found.percentiles[100] == max(values)
    assert len(found.counts) <= 24
    assert histogram([]) is None


def test_failures_are_grouped_by_what_they_say(tmp_path: Path) -> None:
    outputs = [ValueError(f"prompt has {n} tokens; the model takes 8192") for n in (9000, 9001)]
    outputs += [ValueError("column 'a' is missing"), KeyError("x"), "fine"]
    gathering = Gathering()
    run = StoredRun.open(stored_job(tmp_path, [{"question": "q"}] * 5, outputs))
    assert len(list(gathering.watch(run))) == 5
    facts = gathering.facts()
    assert [(c.error_type, c.count, c.rows) for c in facts.causes] == [
        ("ValueError", 2, [0, 1]),
        ("ValueError", 1, [2]),
        ("KeyError", 1, [3]),
    ]
    assert (facts.num_rows, facts.num_ok, facts.finish_reasons) == (5, 1, [("stop", 1)])


def test_the_page_holds_the_rendered_prompt_and_the_scores(tmp_path: Path) -> None:
    html = report([scored_run(tmp_path, 50)])
    [table] = rows_of(html)
    assert table["prompt"][7].endswith("Question: What is 7 + 7?\nAnswer:")
    assert table["truth"][7] == "14"
    side = table["sides"][0]
    value, read, _ = side["scores"]["exact_match,strict-match"][7]
    assert (value, read) == (float(read == "14"), read)
    assert side["error_type"][39] == "ValueError"
    assert "quire run out.jsonl.input.jsonl --model smollm2 -o out.jsonl" in html


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    run = scored_run(tmp_path, 50)
    html = report([run], max_rows=20)
    assert [len(table["key"]) for table in rows_of(html)] == [20]
    assert "The first 20 of 50 rows" in html
    assert ">50<" in html  # the figures are still those of all rows
    assert rows_of(report([run], max_rows=0)) == []


def test_the_same_run_makes_the_same_page(tmp_path: Path) -> None:
    run = scored_run(tmp_path, 50)
    assert report([run]) == report([StoredRun.open(run.path)])


def test_an_unfinished_and_unscored_run_has_a_page(tmp_path: Path) -> None:
    output = stored_job(tmp_path, [{"question": "q"}] * 3, ["a"], status="stopped", num_rows=None)
    html = report([StoredRun.open(output)])
    assert '<span class="pill warn">stopped</span>' in html
    assert 'id="scores"' not in html and "kept no timings" in html


def test_a_run_without_any_row_has_a_page(tmp_path: Path) -> None:
    output = stored_job(tmp_path, [{"question": "q"}], [], status="running")
    assert "No row finished." in report([StoredRun.open(output)])


def test_nothing_from_the_data_is_markup(tmp_path: Path) -> None:
    run = harmful_run(tmp_path)
    for html in (report([run]), report([run, run])):
        for harm in HARM[:4]:
            assert harm not in html
        assert html.count("<script") == 9 and html.count("</script") == 9


def test_our_scripts_never_parse_text_as_markup() -> None:
    for script in ASSETS.glob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?:",
            script.read_text(encoding="utf-8"),
        )
        assert found == [], script.name


def test_the_page_is_small_and_asks_for_nothing(tmp_path: Path) -> None:
    html = page_of(tmp_path, scored_run(tmp_path, 10)).read_text(encoding="utf-8")
    assert len(html) < 200_000
    assert "The MIT License (MIT)" in html and "Leon Sorokin" in html
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"|@import|url\(", html) == []


def test_two_runs_are_matched_by_key_or_by_a_column(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}"} for n in range(4)]
    first = StoredRun.open(stored_job(tmp_path / "a", rows, ["same", "old", "x", "y"]))
    second = StoredRun.open(
        stored_job(tmp_path / "b", [rows[1], rows[0], rows[3]], ["new", "same", "y"], seed=7)
    )
    found = compare(first, second, on="question")
    assert (found.num_both, found.num_only_first, found.num_only_second) == (3, 1, 0)
    assert found.num_same_answers == 2
    assert "seed: 0 -> 7" in found.changes
    keys = [key for key, mine, theirs in pairs(first, second, "question") if theirs is None]
    assert keys == ["q2"]
    assert compare(first, second).num_both == 3  # by place in the input
    with pytest.raises(InvalidOption, match="has no column 'id'"):
        compare(first, second, on="id")


def test_score_differences_are_paired(tmp_path: Path) -> None:
    runs = [scored_run(tmp_path, 80, seed=s, name=f"{s}.jsonl") for s in (1, 2)]
    found = compare(*runs)
    [strict, _] = found.metrics
    assert strict.metric == "exact_match,strict-match"
    assert strict.paired.num == 80  # failed rows count as 0 in both
    difference = (strict.second or 0) - (strict.first or 0)
    assert strict.paired.difference == pytest.approx(difference)
    better, worse = strict.paired.num_better, strict.paired.num_worse
    assert (better - worse) / 80 == pytest.approx(difference)
