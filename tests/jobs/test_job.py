"""What a job does when it is run again: goes on, refuses, reuses, retries; and what it writes."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quire.errors import InvalidOption, JobChanged, JobLocked, QuireError
from quire.jobs.job import Job, JobReport
from quire.jobs.store import store
from quire.jobs.store.journal import GROUP
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.stamps import FileStamp
from tests.jobs import drive
from tests.jobs.driving import read_lines, records, run, run_command, write_rows


def make(source: Any, output: Path, **options: Any) -> Job:
    usual = {"model": "fake", "prompt": "Say {{ text }}", "max_tokens": 4}
    if "messages" in options:
        del usual["prompt"]
    job = Job(source, output, **{**usual, **options})
    job._engine_command = drive.command()
    return job


def answer(source: Any, output: Path, **options: Any) -> JobReport:
    return make(source, output, **options).run(progress=False)


def job_dir(output: Path) -> Path:
    return output.with_name(output.name + ".quire")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", 12)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_the_output_has_the_input_s_columns_and_the_job_s(source: Path, output: Path) -> None:
    report = answer(source, output)
    assert (report.num_rows, report.num_ok, report.num_failed) == (12, 12, 0)
    found = read_lines(output)
    assert [row["text"] for row in found] == [f"row {i}" for i in range(12)]
    names = ["text", "output", "finish_reason", "prompt_tokens", "output_tokens"]
    assert list(found[0]) == [*names, "error", "error_type"]
    assert found[0]["prompt_tokens"] == len("Say row 0") and found[0]["output_tokens"] == 4


def test_a_finished_job_is_left_alone_and_an_output_that_was_lost_is_written_again(
    source: Path, output: Path
) -> None:
    answer(source, output)
    written, before = output.read_bytes(), len(records(job_dir(output)))
    job = make(source, output)
    job._engine_command = ("false",)  # no engine is needed
    assert job.run(progress=False).num_before == 12
    output.unlink()
    job.run(progress=False)
    assert output.read_bytes() == written
    assert len(records(job_dir(output))) == before


CHANGES: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "Tell {{ text }}"},
    "system": {"system": "Be brief."},
    "sampling.max_tokens": {"max_tokens": 5},
    "sampling.temperature": {"temperature": 0.5},
    "sampling.stop": {"stop": ["x"]},
    "sampling.structured_outputs": {"choice": ["a", "b"]},
    "seed": {"seed": 9},
    "chat": {"chat": False},
    "limit": {"limit": 5},
    "where": {"where": "true"},
    "shard": {"shard": "1/2"},
    "id_column": {"id": "text"},
    "output_column": {"output_column": "answer"},
    "timings": {"timings": True},
    "model": {"model": "fake:chat=1"},
    "options.dtype": {"options": {"dtype": "float32"}},
    "settings": {"settings": [{"name": "a"}, {"name": "b", "max_tokens": 2}]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("finished")
    source = write_rows(folder / "in.jsonl", 3)
    answer(source, folder / "out.jsonl")
    return source, folder / "out.jsonl"


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_job_is_refused_by_the_name_of_the_change(
    finished: tuple[Path, Path], name: str
) -> None:
    source, output = finished
    before = output.read_bytes()
    with pytest.raises(JobChanged, match=name) as refused:
        answer(source, output, **CHANGES[name])
    assert "--reuse" in str(refused.value)
    assert output.read_bytes() == before


def test_a_job_that_answered_nothing_is_begun_again_with_another_command(
    source: Path, output: Path
) -> None:
    """As where the engine refused an option, which is mended then."""
    with pytest.raises(QuireError, match="could not convert string to float"):
        answer(source, output, model="fake:load=long")
    assert answer(source, output, model="fake:load=0").num_ok == 12
    with pytest.raises(JobChanged, match="model"):
        answer(source, output, model="fake:load=long")


def test_an_edited_a_longer_and_a_reordered_input_are_refused(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    answer(source, output)
    lines = source.read_text().splitlines(keepends=True)
    edits = {
        "edited": ["".join(lines).replace("row 2", "row X")],
        "longer": [*lines, '{"text": "row 4"}\n'],
        "reordered": lines[::-1],
    }
    for edit in edits.values():
        source.write_text("".join(edit))
        with pytest.raises(JobChanged, match="inputs"):
            answer(source, output)
    source.write_text("".join(lines))  # the same bytes in a file that was touched are the same
    assert answer(source, output).num_before == 4


def test_another_version_of_quire_is_told(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(source, output)
    monkeypatch.setattr("quire.jobs.job_setup.__version__", "9.9.9")
    with pytest.raises(JobChanged, match="version: '.*' -> '9.9.9'"):
        answer(source, output)


def test_changed_weights_and_tokenizers_are_refused(tmp_path: Path) -> None:
    weights, tokenizer = tmp_path / "model.safetensors", tmp_path / "tokenizer.json"
    weights.write_bytes(b"weights"), tokenizer.write_bytes(b"tokens")  # type: ignore[func-returns-value]
    then = Manifest(
        version="1",
        created="",
        command=(),
        kind="generate",
        inputs=(),
        model_files=(FileStamp.of(weights).hashed(),),
        tokenizer_files=(FileStamp.of(tokenizer).hashed(),),
    )
    weights.write_bytes(b"WEIGHTS")
    os.utime(tokenizer)
    now = then.changed(
        model_files=(FileStamp.of(weights),), tokenizer_files=(FileStamp.of(tokenizer),)
    )
    differences, about_every_row = then.differences(now)
    assert len(differences) == 1 and "model.safetensors" in differences[0] and about_every_row


def test_reuse_computes_only_what_changed(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 10), tmp_path / "out.jsonl"
    answer(source, output)
    before = {row["text"]: row["output"] for row in read_lines(output)}
    texts = ["new first", *(f"row {i}" for i in range(10))]
    texts[4] = "changed"
    write_rows(source, len(texts), texts.__getitem__)
    answer(source, output, reuse=True)
    found = read_lines(output)
    assert [row["text"] for row in found] == texts
    kept = [row for row in found if row["text"] in before]
    assert len(kept) == 9 and all(row["output"] == before[row["text"]] for row in kept)
    new = [r for r in store.read_results(output) if "timings" in r.extra and r.epoch == 2]
    assert len(new) == 11  # kept rows are written again, with the answers they had
    assert answer(source, output).num_before == 11


def test_reuse_asks_the_engine_for_the_changed_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.replicas.engine_process import EngineProcess

    source, output = write_rows(tmp_path / "in.jsonl", 10), tmp_path / "out.jsonl"
    answer(source, output, temperature=1.0)
    sent: list[int] = []
    real = EngineProcess.send

    def spy(self: EngineProcess, message: dict[str, Any]) -> None:
        sent.extend(row["row"] for row in message.get("rows", ()))
        real(self, message)

    monkeypatch.setattr(EngineProcess, "send", spy)
    write_rows(source, 10, lambda i: "changed" if i in (3, 8) else f"row {i}")
    answer(source, output, temperature=1.0, reuse=True)
    assert sent == [3, 8]


def test_failed_rows_stay_failed_until_they_are_tried_again(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n{"text": "<nan>"}\nnonsense\n')
    assert answer(source, output).num_failed == 2
    assert answer(source, output).num_failed == 2
    assert len(records(job_dir(output))) == 3
    assert answer(source, output, retry_failed=True).num_failed == 2
    assert len(records(job_dir(output))) == 5
    assert [row["error_type"] for row in read_lines(output)] == [
        None,
        "nan_logits",
        "malformed_row",
    ]


def test_an_output_that_no_job_wrote_is_not_overwritten(source: Path, output: Path) -> None:
    output.write_text("precious\n")
    with pytest.raises(InvalidOption, match="--overwrite"):
        answer(source, output)
    assert output.read_text() == "precious\n"
    answer(source, output, overwrite=True)
    assert len(read_lines(output)) == 12
    answer(source, output, overwrite=True, limit=2)
    assert len(read_lines(output)) == 2


def test_a_second_writer_is_told_who_the_first_is(source: Path, output: Path) -> None:
    job_dir(output).mkdir()
    with JobLock.take(job_dir(output)):
        with pytest.raises(JobLocked, match=f"process {os.getpid()}"):
            answer(source, output)
        assert run(run_command(source, output)).returncode == 73
    assert answer(source, output).num_ok == 12


def test_a_disk_that_fails_as_a_job_ends_leaves_it_free(source: Path, output: Path) -> None:
    """The same program goes on with it later."""

    def broken(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(Path, "iterdir", broken)
        answer(source, output)
    assert answer(source, output).num_ok == 12


def test_where_limit_and_shard_choose_rows(source: Path, tmp_path: Path) -> None:
    texts = {}
    for name, options in {
        "where": {"where": "text.endswith('1')"},
        "limit": {"limit": 3},
        "first": {"shard": "1/2"},
        "second": {"shard": (2, 2)},
        "both": {"shard": "2/2", "limit": 2},
    }.items():
        answer(source, tmp_path / f"{name}.jsonl", **options)
        texts[name] = [row["text"] for row in read_lines(tmp_path / f"{name}.jsonl")]
    assert texts["where"] == ["row 1", "row 11"]
    assert texts["limit"] == ["row 0", "row 1", "row 2"]
    assert sorted(texts["first"] + texts["second"]) == sorted(f"row {i}" for i in range(12))
    assert texts["both"] == ["row 1", "row 3"]


def test_a_shard_s_rows_are_those_of_the_whole(source: Path, tmp_path: Path) -> None:
    options = {"temperature": 1.0, "seed": 4}
    answer(source, tmp_path / "whole.jsonl", **options)
    answer(source, tmp_path / "part.jsonl", shard="2/3", **options)
    whole = {row["text"]: row for row in read_lines(tmp_path / "whole.jsonl")}
    part = read_lines(tmp_path / "part.jsonl")
    assert len(part) == 4 and all(whole[row["text"]] == row for row in part)


def test_equal_rows_differ_when_they_are_drawn_and_agree_when_not(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 8, lambda i: "same")
    answer(source, tmp_path / "greedy.jsonl")
    answer(source, tmp_path / "drawn.jsonl", temperature=1.0)
    assert len({row["output"] for row in read_lines(tmp_path / "greedy.jsonl")}) == 1
    assert len({row["output"] for row in read_lines(tmp_path / "drawn.jsonl")}) == 8


def test_several_settings_give_a_row_each(source: Path, output: Path) -> None:
    settings = [{"name": "cold"}, {"name": "warm", "temperature": 1.0, "max_tokens": 2}]
    report = answer(source, output, settings=settings, limit=3)
    found = read_lines(output)
    assert report.num_rows == 6
    assert [row["setting"] for row in found] == ["cold", "warm"] * 3
    assert [row["output_tokens"] for row in found] == [4, 2] * 3
    assert [r.key for r in store.read_results(output)][:2] == ["0:0#cold", "0:0#warm"]


def test_several_answers_are_lists(source: Path, output: Path) -> None:
    answer(source, output, n=3, temperature=1.0, limit=2)
    found = read_lines(output)
    assert [len(row["output"]) for row in found] == [3, 3]
    assert len(set(found[0]["output"])) == 3 and len(found[0]["finish_reason"]) == 3


def test_several_inputs_are_one_job(tmp_path: Path, output: Path) -> None:
    first = write_rows(tmp_path / "a.jsonl", 2)
    second = tmp_path / "b.csv"
    second.write_text("text,label\nrow x,1\n")
    answer([first, second], output)
    assert [row["text"] for row in read_lines(output)] == ["row 0", "row 1", "row x"]
    assert [r.key for r in store.read_results(output)] == ["0:0", "0:1", "1:0"]


def test_examples_and_a_system_message_come_before_the_prompt(source: Path, tmp_path: Path) -> None:
    examples = tmp_path / "shots.jsonl"
    examples.write_text('{"text": "one", "answer": "eins"}\n{"text": "two", "answer": "zwei"}\n')
    options = {"system": "Translate.", "few_shot": str(examples), "limit": 1}
    answer(source, tmp_path / "raw.jsonl", **options)
    raw = "Translate.\n\nSay one eins\n\nSay two zwei\n\nSay row 0"
    assert read_lines(tmp_path / "raw.jsonl")[0]["prompt_tokens"] == len(raw)
    answer(source, tmp_path / "chat.jsonl", model="fake:chat=1", **options)
    chat = "<system>Translate.<user>Say one<assistant>eins<user>Say two<assistant>zwei"
    found = read_lines(tmp_path / "chat.jsonl")[0]["prompt_tokens"]
    assert found == len(chat + "<user>Say row 0")
    shown = store.rendered_prompt(
        Manifest.load(job_dir(tmp_path / "chat.jsonl")), {"text": "row 0"}
    )
    assert shown.endswith("user: Say row 0") and "assistant: zwei" in shown


def test_parquet_in_parquet_out_keeps_the_columns_bit_for_bit(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["a", "b", "c"],
            "when": pa.array([1, 2, None], pa.timestamp("ns")),
            "price": pa.array([1, 2, 3], pa.decimal128(9, 2)),
            "tags": [["x"], [], None],
        }
    )
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(table, source)
    answer(source, output)
    found = pq.read_table(output)
    assert found.select(table.column_names).equals(table)
    assert found.column("finish_reason").to_pylist() == ["length"] * 3
    again = tmp_path / "again.parquet"
    answer(source, again)
    assert again.read_bytes() == output.read_bytes()
    assert store.read_table(output).equals(found)


def test_jsonl_to_parquet_finds_types_and_keeps_mixed_columns_as_text(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    rows: list[dict[str, Any]] = [
        {"text": "a", "score": 1, "mixed": 1},
        {"text": "b", "score": 2.5, "mixed": "two", "late": [1]},
        {"text": "c", "mixed": {"k": None}},
    ]
    lines = [json.dumps(row) for row in rows]
    source.write_text("\n".join([*lines, "nonsense"]) + "\n")
    answer(source, output)
    found = pq.read_table(output)
    assert found.column("score").to_pylist() == [1.0, 2.5, None, None]
    assert found.column("mixed").to_pylist() == ["1", "two", '{"k": null}', None]
    assert found.column("late").to_pylist() == [None, [1], None, None]
    assert found.column("error_type").to_pylist() == [None, None, None, "malformed_row"]


def test_parquet_row_groups_do_not_depend_on_how_the_job_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.output.output.ROW_GROUP", 5)
    source, output = write_rows(tmp_path / "in.jsonl", 12), tmp_path / "out.parquet"
    answer(source, output)
    file = pq.ParquetFile(output)
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [5, 5, 2]


def test_rows_of_a_program_are_spooled(output: Path) -> None:
    def rows() -> Any:
        return ({"text": f"made {i}"} for i in range(3))

    answer(rows(), output)
    assert [row["text"] for row in read_lines(output)] == ["made 0", "made 1", "made 2"]
    assert answer(rows(), output).num_before == 3
    with pytest.raises(JobChanged):
        answer([{"text": "other"}], output)


def test_a_table_of_a_program_is_spooled_as_it_is(output: Path) -> None:
    table = pa.table({"text": ["a", "b"], "when": pa.array([1, 2], pa.timestamp("ns"))})
    answer(table, output.with_suffix(".parquet"))
    found = pq.read_table(output.with_suffix(".parquet"))
    assert found.select(["text", "when"]).equals(table)
    assert answer(table, output.with_suffix(".parquet")).num_before == 2


def test_more_structured_rows_than_are_ever_in_flight(tmp_path: Path, output: Path) -> None:
    """Rows that wait for their grammar are no reason to wait for more rows."""
    source = write_rows(tmp_path / "in.jsonl", 400)
    report = answer(source, output, model="fake:rows=4", regex="[a-z ]{1,9}", max_tokens=2)
    assert report.num_rows == 400 and report.num_restarts == 0


def test_a_clash_of_columns_is_refused_before_anything_runs(tmp_path: Path, output: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a", "output": "mine"}\n')
    with pytest.raises(InvalidOption, match="--output-column"):
        answer(source, output)
    answer(source, output, output_column="answer")
    found = read_lines(output)[0]
    assert found["output"] == "mine" and found["answer"]


def test_a_disk_that_is_full_stops_the_job_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """A real limit of the system: no file may grow beyond 140,000 bytes."""
    source, output = write_rows(tmp_path / "in.jsonl", 900), tmp_path / "out.jsonl"
    limit = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (140000, 140000));"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = run([sys.executable, "-c", limit, *run_command(source, output)])
    assert done.returncode == 75, done.stderr
    assert "quire run" in done.stderr and "Traceback" not in done.stderr
    kept = len(records(job_dir(output)))
    assert 100 < kept < 900 and not output.exists()
    said = re.search(r"(\d+) rows are on disk", done.stderr)
    assert said and kept - GROUP < int(said[1]) <= kept  # what was not synced is not counted
    assert run(run_command(source, output)).returncode == 0
    assert len(read_lines(output)) == 900 and len(records(job_dir(output))) == 900


def test_metrics_and_results_can_be_read_by_others(source: Path, output: Path) -> None:
    answer(source, output, model="fake:delay=0.3")
    lines = list(store.read_metrics(output))
    assert lines and {"time", "running", "waiting", "kv_use", "finished"} <= lines[0].keys()
    table = store.read_table(output)
    assert table.num_rows == 12 and table.column_names[0] == "text"
    assert list(store.read_rows(output)) == read_lines(output)
    assert not store.is_running(job_dir(output))
    assert store.Manifest.load(job_dir(output)).status == "finished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": None}, "prompt or messages"),
        ({"prompt": "{{ text"}, "does not compile"),
        ({"prompt": ""}, "prompt is empty"),
        ({"few_shot": ""}, "few_shot is the name of a file"),
        ({"job": ""}, "job is the name of a file"),
        ({"where": "text >"}, "does not compile"),
        ({"temperature": -1}, "temperature"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"options": {"no_such_thing": 1}}, "no_such_thing"),
        ({"shard": "3/2"}, "shard"),
        ({"shard": "x"}, "shard"),
        ({"limit": 0}, "limit"),
        ({"schema": "{"}, "schema"),
        ({"schema": "{}", "regex": "a"}, "excludes"),
        ({"settings": [{"name": "a"}, {"name": "a"}]}, "names of their own"),
        ({"n": 2}, "temperature"),
        ({"logprobs": 0}, "logprobs is not stored by a job"),
        ({"settings": [{"prompt_logprobs": 1}]}, "prompt_logprobs is not stored by a job"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_made(
    source: Path, output: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        answer(source, output, **options)
    assert not output.exists() and not job_dir(output).exists()


def test_a_file_that_is_no_schema_is_not_called_missing(source: Path, output: Path) -> None:
    path = source.with_name("schema.json")
    for data, words in ((b"{", "neither is what that file"), (b"\xff\xfe{", "no text in UTF-8")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            answer(source, output, schema=str(path))
    with pytest.raises(ValueError, match="no file has that name"):
        answer(source, output, schema="x" * 5000)
