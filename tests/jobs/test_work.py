"""Which rows count, what they are called, and what is asked of them."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import time
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption
from quire.jobs.input.count import Counting
from quire.jobs.input.files import find_files
from quire.jobs.input.prompts import PromptMaker
from quire.jobs.input.rows import BadRow
from quire.jobs.input.templates import RowTemplate, RowTest
from quire.jobs.input.work import Selection, Setting, Work
from quire.jobs.store.keys import ContentHash, KeyTable, row_seed
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.metrics import MetricsFile
from quire.jobs.supervise.progress import Progress
from quire.replicas.memory_kills import MemoryKills, smaller


def work(path: Path, prompt: str = "{{ text }}", done: Any = (), **selection: Any) -> Work:
    return Work(
        find_files([str(path)]),
        PromptMaker(prompt=prompt),
        [Setting(None, {"temperature": 0.0})],
        Selection(**selection),
        seed=0,
        common=None,
        reserved=frozenset({"output"}),
        done=done,
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [{"id": i % 4, "text": f"t{i}", "n": i} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "nonsense\n")
    return path


def test_rows_have_names_contents_and_errors_of_their_own(rows: Path) -> None:
    made = list(work(rows).rows())
    assert [row.key for row in made] == [f"0:{i}" for i in range(7)]
    assert [row.asked.get("prompt") for row in made[:2]] == ["t0", "t1"]
    assert len({row.content for row in made[:6]}) == 6
    assert made[6].error is not None and made[6].error.kind == "malformed_row"


def test_done_rows_are_passed_over_and_still_counted(rows: Path) -> None:
    left = work(rows, done={0, 1, 4})
    assert [row.row for row in left.rows()] == [2, 3, 5, 6]
    assert left.num_rows == 7 and left.finished


def test_the_second_of_two_equal_ids_is_the_one_that_fails(rows: Path) -> None:
    made = list(work(rows, id_column="id").rows())
    assert [row.key for row in made] == ["0", "1", "2", "3", "0:4", "0:5", "0:6"]
    kinds = [row.error.kind if row.error else None for row in made]
    assert kinds == [None] * 4 + ["duplicate_id"] * 2 + ["malformed_row"]
    again = list(work(rows, id_column="id", done={0, 1}).rows())
    assert [row.row for row in again] == [2, 3, 4, 5, 6]
    assert again[2].error is not None and again[2].error.kind == "duplicate_id"


def test_a_row_of_which_nobody_can_tell_whether_it_counts_fails(rows: Path) -> None:
    made = list(work(rows, where="m > 3").rows())
    assert {row.error.kind for row in made if row.error} == {"missing_column", "malformed_row"}
    chosen = list(work(rows, where="n > 3").rows())
    assert [row.row for row in chosen] == [4, 5, 6]


def test_how_many_rows_there_will_be_is_known_beforehand(rows: Path) -> None:
    counting = Counting(find_files([str(rows)]))
    counting.join()
    assert counting.num_rows == 7
    assert work(rows).total(7) == 7
    assert work(rows, shard=(2, 3)).total(7) == 2
    assert work(rows, limit=3).total(7) == 3
    assert work(rows, where="n").total(7) is None
    assert work(rows).total(None) is None


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{{ missing }}", "missing_column"),
        ("{{ text.missing.more }}", "missing_column"),
        ("{{ 1 // 0 }}", "template_error"),
        ("{{ text + 1 }}", "template_error"),
        ("{% for i in range(10**9) %}x{% endfor %}", "template_error"),
        ("{{ 'x' * 10**9 }}", "template_error"),
        ("{{ ''.__class__.__mro__ }}", "missing_column"),
        ("{{ self.__init__.__globals__ }}", "template_error"),
    ],
)
def test_a_template_that_fails_costs_its_row(template: str, kind: str) -> None:
    with pytest.raises(BadRow) as failed:
        RowTemplate(template, "--prompt").render({"text": "a"})
    assert failed.value.kind in {kind, "template_error", "missing_column"}


def test_a_number_that_is_text_says_how_it_becomes_one() -> None:
    for holds in (RowTest("n > 3", "--where").holds, RowTemplate("{{ n + 3 }}", "--prompt").render):
        with pytest.raises(BadRow, match=r"a CSV holds is text: \{\{ n \| int \}\}"):
            holds({"n": "5"})


@pytest.mark.parametrize("template", ["{{ text }}", "{{ 'a' ~ text }}", "{{ row.get('no') }}"])
def test_a_null_is_never_written_out_as_a_word(template: str) -> None:
    with pytest.raises(BadRow, match="it writes a null; say what stands in its place") as failed:
        RowTemplate(template, "--prompt").render({"text": None})
    assert failed.value.kind == "null_value"
    assert RowTemplate("{{ text or 'unknown' }}", "--prompt").render({"text": None}) == "unknown"
    assert RowTest("text is none", "--where").holds({"text": None})


def test_a_column_comes_before_a_method_and_a_method_is_no_text() -> None:
    row = {"items": "three", "more": {"values": [1]}, "text": "a"}
    template = RowTemplate("{{ row.items }} {{ more.values }} {{ row.keys() | list }}", "--prompt")
    assert template.render(row) == "three [1] ['items', 'more', 'text']"
    for written in ("{{ row.copy }}", "{{ self }}", "{{ text.upper }}", "{{ range ~ 'x' }}"):
        with pytest.raises(BadRow, match="and no value") as failed:
            RowTemplate(written, "--prompt").render(row)
        assert failed.value.kind == "template_error"


def test_odd_column_names_and_white_space() -> None:
    row = {"a b": 1, "self": 2, "range": 3, "x": " y "}
    template = RowTemplate("{{ row['a b'] }}{{ row['self'] }}{{ range }}{{ x }}\n", "--prompt")
    assert template.render(row) == "123 y \n"
    assert RowTest("x | trim == 'y' and 'a' not in x", "--where").holds(row)
    with pytest.raises(InvalidOption, match="--where does not compile"):
        RowTest("x ==", "--where")


def test_seeds_are_a_function_of_seed_and_name_alone() -> None:
    seeds = {row_seed(seed, f"0:{i}") for seed in range(3) for i in range(1000)}
    assert len(seeds) == 3000 and all(0 <= seed < 2**63 for seed in seeds)
    assert row_seed(1, "\ud800") == row_seed(1, "\ud800")


def test_contents_differ_in_everything_that_is_asked() -> None:
    asked = {"prompt": "a"}
    found = {
        ContentHash(None).of(asked, None),
        ContentHash(None).of({"prompt": "b"}, None),
        ContentHash(None).of(asked, 1),
        ContentHash({"temperature": 1}).of(asked, None),
    }
    assert len({digest for digest, _ in found}) == 4


def test_a_key_table_is_a_dict_in_less_room() -> None:
    table, truth = KeyTable(), dict[str, int]()
    for i in range(5000):
        key = f"key {i * 7919 % 3001}"
        assert table.put(key, i) == (key in truth)
        truth[key] = i
    assert all(table.get(key) == value for key, value in truth.items())
    assert table.get("nobody") is None


def test_only_the_kernel_s_own_kills_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = [5]
    monkeypatch.setattr("quire.replicas.memory_kills.memory_kills", lambda: kills[0])
    memory = MemoryKills()
    assert not memory.is_why(-9)
    kills[0] = 6
    assert not memory.is_why(-11) and memory.is_why(-9)
    memory = MemoryKills()
    assert not memory.is_why(-9)
    options = smaller({"dtype": "float32"}, {"capacity": 256, "num_blocks": 1000})
    assert options == {
        "dtype": "float32",
        "max_num_seqs": 128,
        "num_gpu_blocks_override": 500,
    }


def test_a_job_that_fails_from_the_start_says_so_early(tmp_path: Path) -> None:
    def failed(row: int) -> ResultRecord:
        return ResultRecord(row, f"0:{row}", "", 1, error="no 'txt'", error_type="missing_column")

    def notes(first: ResultRecord) -> str:
        stream = io.StringIO()
        shown = Progress(MetricsFile(tmp_path), stream=stream)
        shown.note = lambda line: print(line, file=stream)  # type: ignore[method-assign]
        for record in (first, *map(failed, range(1, 200))):
            shown.result(record)
        return stream.getvalue()

    assert notes(failed(0)).count("the first 64 rows all failed") == 1
    assert "missing_column: no 'txt'" in notes(failed(0))
    assert notes(ResultRecord(0, "0:0", "", 1, ("x",), ("stop",), 5, 7)) == ""


def test_in_a_terminal_one_line_is_written_again_and_again(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as terminal:
        shown = Progress(MetricsFile(tmp_path), stream=terminal)
        shown.total = 4
        shown.result(ResultRecord(0, "0:0", "", 1, ("x",), ("stop",), 5, 7))
        shown.note("quire: a note")
        time.sleep(0.3)
        shown.tick()
        shown.close()
        terminal.flush()
        written = ""
        while select.select([ours], [], [], 0.5)[0]:  # a terminal hands it over in pieces
            written += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "1/4 rows" in written and "quire: a note" in written and "\x1b[" in written
