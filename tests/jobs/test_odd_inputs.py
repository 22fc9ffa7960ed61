"""Inputs as people have them: arrays, patterns, damaged archives, the output itself."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quire.errors import InvalidOption, JobChanged
from quire.jobs.input import json_array
from quire.jobs.input.count import Counting
from quire.jobs.input.files import find_files, read_rows
from quire.jobs.job import Job
from quire.jobs.output.results import StoredRun
from quire.jobs.store import store
from quire.jobs.store.stamps import FileStamp
from tests.jobs.driving import command, read_lines, run, write_rows
from tests.jobs.instant import InstantEngine

ROWS = [{"text": "a [1, 2], {", "n": [1, {"k": "]"}]}, {"text": 'ü "quoted"'}, {"n": 1.5e3}]


def values(*names: object) -> list[Any]:
    files = find_files([str(name) for name in names])
    return [row.error.kind if row.error else row.values for row in read_rows(files)]


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_a_json_array_gives_its_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    path = tmp_path / "a.json"
    text = json.dumps([*ROWS, 7, "no row", 12], indent=indent, ensure_ascii=False)
    path.write_text("\ufeff \n" + text + "\n", encoding="utf-8")
    bad = ["malformed_row"] * 3
    assert values(path) == [*ROWS, *bad]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert values(tmp_path / "a.json.gz") == [*ROWS, *bad]


@pytest.mark.parametrize("text", ["[]", " [ ] ", "", "\n"])
def test_an_empty_array_has_no_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert values(tmp_path / "a.json") == []


@pytest.mark.parametrize("chunk", [1, 1 << 16])
@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ('{"a": oops}', "at character 10 is not JSON: Expecting value"),
        ('{"a": 1} {"a": 2}', "Extra data"),
        ('{"a": 1]}', "Expecting ',' delimiter"),
        ("", "Expecting value"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a": ' + "9" * 5000 + "}", "4300 digits"),
        ('{"a": 1e999}', "more than a double"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "more than 128 levels"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "more than 128 levels"),
        ('{"a": "\udcff"}', "at character 10 is not UTF-8"),
        ('"' + "x" * 1000 + '"', "longer than a row may be: 900"),
        ('{"a": "never closed}', "is never closed, or the file was cut"),
        ('{"a": {"b": 1}', "is never closed, or the file was cut"),
        ("5] [", "all that follows is behind the array"),
    ],
)
def test_a_bad_element_of_an_array_costs_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, elements: str, words: str
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    if "longer" in words:
        monkeypatch.setattr(json_array, "LONGEST_ROW", 900)
    text = f'[{{"a": 0}},{elements}, {{"a": 1}}]'
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = list(read_rows(find_files([str(tmp_path / "a.json")])))
    assert found[0].values == {"a": 0}
    errors = [row.error for row in found if row.error is not None]
    assert words in errors[-1].message
    reaches_on = "never closed" in words or "behind" in words
    assert reaches_on or [row.values for row in found[2:]] == [{"a": 1}]


def test_an_array_that_was_cut_says_so(tmp_path: Path) -> None:
    for text in ('[{"a": 1}, ', '[{"a": 1}', '[{"a": 1}, {"a": "x'):
        (tmp_path / "a.json").write_text(text)
        assert values(tmp_path / "a.json")[-1] == "malformed_row"


def test_a_long_text_of_an_array_may_lie_across_what_is_read_at_once(tmp_path: Path) -> None:
    rows = [{"text": 'long "text" \\ ' * 200, "n": n} for n in range(100)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert values(tmp_path / "a.json") == rows


def test_the_rows_of_an_array_are_not_guessed_from_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=1))
    counting = Counting(find_files([str(tmp_path / "a.json")]))
    counting.join()
    assert counting.num_rows is None


def test_a_pattern_names_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert [row["from"] for row in values(f"{tmp_path}/*.jsonl")] == ["a.jsonl", "b.jsonl"]
    assert len(values(f"{tmp_path}/**/*.jsonl")) == 3
    with pytest.raises(InvalidOption, match="no input"):
        values(f"{tmp_path}/*.csv")


def packed(data: bytes, level: int | None = None) -> bytes:
    return pa.Codec("zstd", level).compress(data, asbytes=True)  # type: ignore[no-any-return]


PACK: dict[str, Any] = {
    "gz": gzip.compress,
    "zst": packed,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.json.gz", "a.jsonl.xz", "a.csv.bz2"])
@pytest.mark.parametrize("how", ["cut", "plain", "damaged"])
def test_an_archive_that_does_not_unpack_is_a_read_error_with_its_name(
    tmp_path: Path, name: str, how: str
) -> None:
    whole = b"text\n" + b'{"text": "one"}\n' * 3000
    archive = bytearray(PACK[name.rpartition(".")[2]](whole))
    if how == "damaged":
        archive[len(archive) // 2] ^= 255
    given = {"cut": archive[: len(archive) // 2], "plain": whole, "damaged": archive}[how]
    (tmp_path / name).write_bytes(given)
    with pytest.raises(OSError, match="does not unpack") as caught:
        values(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("kind", PACK)
def test_packed_files_are_read_as_they_are_unpacked(tmp_path: Path, kind: str) -> None:
    lines, pack = "\ufeff" + "".join(json.dumps(row) + "\n" for row in ROWS), PACK[kind]
    halves = lines.encode()[:20], lines.encode()[20:]  # two frames, as several threads write them
    (tmp_path / f"a.jsonl.{kind}").write_bytes(b"".join(map(pack, halves)))
    (tmp_path / f"a.csv.{kind}").write_bytes(pack(b"text,n\none,1\n"))
    (tmp_path / f"a.json.{kind}").write_bytes(pack(json.dumps(ROWS).encode()))
    assert values(tmp_path / f"a.jsonl.{kind}") == values(tmp_path / f"a.json.{kind}") == ROWS
    assert values(tmp_path / f"a.csv.{kind}") == [{"text": "one", "n": "1"}]


def test_zstd_that_is_cut_is_a_read_error(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl.zst").write_bytes(packed(lines.encode())[:-4])
    with pytest.raises(OSError, match="does not unpack as zstd") as caught:
        values(tmp_path / "a.jsonl.zst")
    assert caught.value.filename == str(tmp_path / "a.jsonl.zst")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"text": "a"}\n'.encode("utf-16"), "is UTF-16"),
        (b"\xfe\xff" + '{"text": "a"}\n'.encode("utf-16-be"), "is UTF-16"),
        (gzip.compress(b'{"text": "a"}\n'), "end in .gz"),
        (packed(b'{"text": "a"}\n'), "end in .zst"),
        (lzma.compress(b'{"text": "a"}\n'), "end in .xz"),
        (b"PK\x03\x04 a workbook", "a ZIP archive"),
        (b"PAR1\x15\x04", "--format parquet"),
    ],
)
def test_a_file_that_is_no_text_is_refused_before_its_rows_fail(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    job = Job(tmp_path / name, tmp_path / "out.jsonl", model="m", prompt="{{ text }}")
    with pytest.raises(InvalidOption, match=words):
        job.run(progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    with pytest.raises(InvalidOption, match=words):
        values(tmp_path / f"{name}.gz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  "text": "a",\n  "n": 1\n}\n', "over several lines.*jq -c"),
        ('{"text": "a",\n "n": 1}\n', "over several lines"),
        ('{"data": [\n  {"text": "a"}\n]}', "over several lines"),
        ('[\n {"text": "a"}\n]', "name ends in .json"),
    ],
)
def test_json_whose_rows_are_no_lines_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(InvalidOption, match=words):
        values(tmp_path / "a.jsonl")


def test_a_first_line_that_was_cut_costs_its_row_alone(tmp_path: Path) -> None:
    for cut in ('{"text": "a",', '{"text": [', "{"):
        (tmp_path / "a.jsonl").write_text(cut + '\n{"text": "b"}\n')
        assert values(tmp_path / "a.jsonl") == ["malformed_row", {"text": "b"}]


def test_lines_that_end_in_cr_alone_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\r {"text": "b"}\r')
    with pytest.raises(InvalidOption, match="end in CR alone"):
        values(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\r{"}')  # one bad row, and no lines
    assert values(tmp_path / "a.jsonl") == ["malformed_row"]
    (tmp_path / "a.csv").write_bytes(b"text\ra\rb\r")
    assert values(tmp_path / "a.csv") == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("id;text\n1;a, b\n", [{"id": "1", "text": "a, b"}]),
        ('"id, old";"text"\n1;"a;b"\n', [{"id, old": "1", "text": "a;b"}]),
        ("id\ttext\n1\ta;b\n", [{"id": "1", "text": "a;b"}]),
        ("id|text\n1|a;b\n", [{"id": "1", "text": "a;b"}]),
        ("id,text;more\n1,a;b\n", [{"id": "1", "text;more": "a;b"}]),
        ("sep=;\r\nid, old;text\r\n1;a, b\r\n", [{"id, old": "1", "text": "a, b"}]),
        ("sep=\t\nid\ttext\n1\ta;b\n", [{"id": "1", "text": "a;b"}]),
        ("sep=\n1\n", [{"sep=": "1"}]),
    ],
)
def test_a_header_without_commas_tells_what_separates(
    tmp_path: Path, text: str, rows: list[Any]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert values(tmp_path / "a.csv") == rows


def test_bytes_are_no_text_of_a_prompt(tmp_path: Path) -> None:
    """Some programs write text to Parquet without saying that it is any."""
    source, output = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    pq.write_table(pa.table({"text": pa.array([b"one", b"two"], pa.binary())}), source)
    Job(source, output, model="m", prompt="About {{ text }}").run(progress=False)
    found = read_lines(output)
    assert [row["error_type"] for row in found] == ["template_error"] * 2
    assert "make the column text" in found[0]["error"]


def test_a_pipe_by_name_is_refused_since_it_can_be_read_only_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(InvalidOption, match="quire run -"):
        values(tmp_path / "rows.jsonl")


def test_numbers_that_json_lacks_are_null_in_the_output(tmp_path: Path) -> None:
    source, output = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    odd = [float("nan"), float("inf"), 1.5]
    pq.write_table(pa.table({"text": ["a", "b", "c"], "x": odd, "xs": [odd] * 3}), source)
    Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
    found = [
        json.loads(line, parse_constant=pytest.fail) for line in output.read_text().splitlines()
    ]
    assert [row["x"] for row in found] == [None, None, 1.5]
    assert found[0]["xs"] == [None, None, 1.5]


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = write_rows(tmp_path / "in" / "in.jsonl", 3)
    before = source.read_bytes()
    for given, output in ((source, source), (tmp_path / "in", tmp_path / "in" / "out.jsonl")):
        with pytest.raises(InvalidOption, match="give another OUTPUT"):
            Job(given, output, model="m", prompt="{{ text }}", overwrite=True).run(progress=False)
    assert source.read_bytes() == before and len(list((tmp_path / "in").iterdir())) == 1


@pytest.mark.parametrize("name", ["folder.jsonl", "a\0b.jsonl"])
def test_an_output_that_can_be_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    source = write_rows(tmp_path / "in.jsonl", 3)
    (tmp_path / "folder.jsonl").mkdir()
    job = Job(source, tmp_path / name, model="m", prompt="{{ text }}", overwrite=True)
    with pytest.raises(InvalidOption, match="give the name of a file"):
        job.run(progress=False)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("")
    job = Job(tmp_path / "in.csv", tmp_path / "out.jsonl", model="m", prompt="{{ text }}")
    for _ in range(2):
        with pytest.raises(InvalidOption, match="header"):
            job.run(progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


LACKING: list[tuple[str, dict[str, Any], str]] = [
    ('{"txt": 1, "n": 2}\n' * 1500, {}, "first 1,000 rows.*'text' is undefined.*'txt', 'n'"),
    ('{"txt": 1}\nnonsense\n', {}, "first 2 rows.*'text' is undefined"),
    (
        "nonsense\n",
        {},
        "the only row that counts cannot be asked: the line is not JSON: .* character 0",
    ),
    ('{"text": 1}\n' * 2, {"id": "name"}, "'name' has no text or whole number"),
    ('{"txt": 1}\n' * 2, {"prompt": None, "messages": "talk"}, "no column 'talk'"),
    ('{"text": null}\n' * 2, {}, "it writes a null; say what stands in its place"),
    ('[{"text": "a"}]\n', {}, "a JSON array; only a file whose name ends in .json"),
    ('{"e\u0301": 1}\n', {"prompt": "{{ \u00e9 }}"}, r"It has 'e\\u0301'"),
    ('{"text": 1}\n', {"prompt": "a {text}"}, r"asked the same. Write \{\{ text \}\}, or"),
    ('{"txt": 1}\n{"text": 2}\n', {"limit": 1}, "the only row that counts"),
    ('{"custom_id": 7, "text": 1}\n{"a": 1}\n', {"where": "a is defined"}, "only row that counts"),
]


@pytest.mark.parametrize(("lines", "more", "words"), LACKING, ids=range(len(LACKING)))
def test_rows_that_all_lack_what_is_asked_for_are_refused_before_an_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, more: dict[str, Any], words: str
) -> None:
    (tmp_path / "in.jsonl").write_text(lines)
    options = {"prompt": "{{ text }}", **more}
    job = Job(tmp_path / "in.jsonl", tmp_path / "out.jsonl", model="m", **options)
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", None)
    monkeypatch.setattr("quire.jobs.job.EngineProcess", None)
    for begin in (job.run, job.plan):
        with pytest.raises(InvalidOption, match=words):
            begin()
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_table_from_stdin_without_its_format_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**more: Any) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text,label\na,1\n")))
        job = Job("-", tmp_path / "out.jsonl", model="m", prompt="{{ text }}", **more)
        return job.run(progress=False)

    with pytest.raises(InvalidOption, match=r"not JSON.* unless --format says otherwise"):
        run()
    assert run(format="csv").num_ok == 1


@pytest.mark.parametrize("first", ['{"txt": 1}\n' * 999, "nonsense\n" * 1000])
def test_rows_that_can_be_asked_may_come_late(tmp_path: Path, first: str) -> None:
    (tmp_path / "in.jsonl").write_text(first + '{"text": "late"}\n')
    job = Job(tmp_path / "in.jsonl", tmp_path / "out.jsonl", model="m", prompt="{{ text }}")
    assert job.run(progress=False).num_ok == 1


def test_the_end_tells_why_rows_failed(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n{"txt": "b"}\n{"txt": "c"}\nnonsense\n')
    usual = ("run", source, "-m", "fake", "-p", "{{ text }}", "-o", output, "-q")
    done = run(command(*usual))
    assert done.returncode == 3
    assert "\n  2 missing_column: --prompt cannot be made of this row: 'text'" in done.stderr
    assert "\n  1 malformed_row: the line is not JSON" in done.stderr
    assert len(read_lines(output)) == 4
    described = json.loads(run(command(*usual, "--retry-failed", "--json")).stdout)
    assert described["failures"] == {"missing_column": 2, "malformed_row": 1}


def test_a_cell_of_megabytes_is_refused_without_encoding_all_of_it(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ["x" * 4_000_000, "good", "y " * 2_000_000]
    write_rows(source, 3, texts.__getitem__)
    done = run(command("run", source, "-m", "fake", "-p", "{{ text }}", "-o", output, "-q"))
    assert done.returncode == 3
    errors = [row["error"] for row in read_lines(output)]
    assert errors[1] is None and "4,000,000 characters and far more than 1024" in errors[0]
    assert errors[2] == errors[0]


def test_results_are_never_put_beside_rows_they_are_not_of(tmp_path: Path) -> None:
    """Whoever reads a job after its input changed is told, and not shown another row's answer."""
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
    before = source.read_bytes()
    source.write_bytes(b'{"text": "new first"}\n' + before)
    readers = (store.read_rows, store.read_table, lambda path: list(StoredRun.open(path).rows()))
    for read in readers:
        with pytest.raises(JobChanged, match="not what this job read"):
            list(read(output))
    source.unlink()
    with pytest.raises(JobChanged, match="is gone"):
        list(store.read_rows(output))
    source.write_bytes(before)  # the same bytes in another file will do
    assert list(store.read_rows(output)) == read_lines(output)


def test_other_rows_do_not_cost_a_job_those_that_it_answered(tmp_path: Path) -> None:
    output, usual = tmp_path / "out.jsonl", {"model": "m", "prompt": "{{ text }}"}
    tables = [pa.table({"text": [text]}) for text in "ab"]
    for mine, others in (([{"text": "a"}], [{"text": "b"}]), tables):
        Job(mine, output, **usual, overwrite=True).run(progress=False)
        [spooled] = Path(f"{output}.quire").glob("input*")
        before = spooled.stat()
        for wrong in (others, others[:0]):
            with pytest.raises(JobChanged, match="has answers to"):
                Job(wrong, output, **usual).run(progress=False)
        assert [row["text"] for row in store.read_rows(output)] == ["a"]
        Job(mine, output, **usual).run(progress=False)
        assert spooled.stat().st_mtime_ns == before.st_mtime_ns  # the file that it knows
        clash = [{"text": "b", "output": ""}]
        for given in ({"overwrite": True}, {"reuse": True}):  # refused: the job is as it was
            with pytest.raises(InvalidOption, match="has a column 'output'"):
                Job(clash, output, **usual, **given).run(progress=False)
            assert [row["text"] for row in store.read_rows(output)] == ["a"]
            assert list(Path(f"{output}.quire").glob("input*")) == [spooled]
        Job(mine, output, **usual).run(progress=False)
        Job(others, output, **usual, reuse=True).run(progress=False)
        assert [row["text"] for row in store.read_rows(output)] == ["b"]
        Job([], output, **usual, reuse=True).run(progress=False)


def test_an_input_that_changes_while_the_job_runs_spoils_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl"
    real = InstantEngine.send

    def send(self: InstantEngine, message: dict[str, Any]) -> None:
        write_rows(source, 30, "ROW {}".format)  # of the same size
        real(self, message)

    monkeypatch.setattr(InstantEngine, "send", send)
    for _ in range(2):
        with pytest.raises(JobChanged, match="not what"):
            Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
        assert not output.exists()


def test_rows_of_an_input_that_was_changed_and_put_back_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"
    before, real = source.read_bytes(), InstantEngine.__init__

    def start(self: InstantEngine, *given: Any, **more: Any) -> None:
        source.write_bytes(before.replace(b"row 2", b"ROW 2")[:-4])  # and the last one torn
        real(self, *given, **more)

    def job(**more: Any) -> Job:
        return Job(source, output, model="m", prompt="{{ text }}", **more)

    with monkeypatch.context() as changing:
        changing.setattr(InstantEngine, "__init__", start)
        with pytest.raises(JobChanged, match="not what this job read"):
            job().run(progress=False)
    source.write_bytes(before)
    with pytest.raises(JobChanged, match="changed while it was read"):
        job().run(progress=False)
    InstantEngine.asked.clear()
    assert job(reuse=True).run(progress=False).num_ok == 6
    assert InstantEngine.asked == [2, 5]
    assert all(row["output"].endswith(row["text"]) for row in read_lines(output))


def test_the_hash_of_a_file_that_changed_meanwhile_is_not_taken(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", 3)
    found = FileStamp.of(path)
    write_rows(path, 3, "ROW {}".format)
    assert found.hashed().sha256 is None
    assert not found.hashed().same_as(FileStamp.of(path))


def test_a_mistake_does_not_cost_the_job_that_was_to_be_overwritten(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
    before = output.read_bytes()
    (tmp_path / "bad.csv").write_text("")
    clash = tmp_path / "clash.jsonl"
    clash.write_text('{"text": "a", "output": "mine"}\n')
    for mistake in (tmp_path / "bad.csv", clash, tmp_path / "nowhere.jsonl"):
        with pytest.raises(InvalidOption):
            job = Job(mistake, output, model="m", prompt="{{ text }}", overwrite=True)
            job.run(progress=False)
        assert list(store.read_rows(output)) == read_lines(output)
    assert output.read_bytes() == before
    rows = [{"text": "new"}]
    Job(rows, output, model="m", prompt="{{ text }}", overwrite=True).run(progress=False)
    assert [row["text"] for row in read_lines(output)] == ["new"]
