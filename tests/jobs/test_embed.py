"""`quire embed`: vectors as a durable job, the same bytes however often it was killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from quire import Job
from quire.errors import InvalidRequest, JobError, NotSupported, QuireError
from quire.jobs.vectors import decode_vector, encode_vector
from tests.jobs.driving import journal_bytes, kill, run, started, wait_until
from tests.pooling.tiny import ENCODERS, open_llm, texts, write_model, write_sentence_files

ROWS = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_model(made, ENCODERS["bert"])
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.jsonl"
    rows: list[dict[str, Any]] = [{"n": i, "text": text} for i, text in enumerate(texts(ROWS))]
    rows[7] = {"n": 7}
    rows[9]["text"] = "w1 " * 200
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def embed(source: Path, output: Path, model: Path, *more: object) -> list[str]:
    fixed = ("-m", model, "--option", "dtype=float32", "--quiet")
    words = ("embed", source, "-o", output, *fixed, *more)
    return [sys.executable, "-m", "quire", *map(str, words)]


@pytest.fixture(scope="module")
def calm(source: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The output of a run that nobody disturbed: all rows but two."""
    output = tmp_path_factory.mktemp("calm") / "out.jsonl"
    done = run(embed(source, output, model))
    assert done.returncode == 3, done.stderr
    assert f"{ROWS - 2} of {ROWS} rows answered" in done.stderr and "prompt tok/s" in done.stderr
    yield output


def test_vectors_are_those_of_the_library(calm: Path, source: Path, model: Path) -> None:
    found = [json.loads(line) for line in calm.read_text().splitlines()]
    asked = [json.loads(line) for line in source.read_text().splitlines()]
    assert [row["n"] for row in found] == list(range(ROWS))
    assert list(found[0]) == ["n", "text", "embedding", "prompt_tokens", "error", "error_type"]
    assert (found[7]["error_type"], found[9]["error_type"]) == ("missing_column", "prompt_too_long")
    assert found[9]["embedding"] is None and "truncate_prompt_tokens=-1" in found[9]["error"]
    good = [i for i in range(ROWS) if i not in (7, 9)]
    with open_llm(model) as llm:
        outputs = llm.embed([asked[i]["text"] for i in good], use_tqdm=False)
    for i, output in zip(good, outputs, strict=True):
        assert found[i]["prompt_tokens"] == len(output.prompt_token_ids)
        assert np.array_equal(np.float32(found[i]["embedding"]), output.outputs.array)


def test_a_killed_job_goes_on_to_the_same_bytes(
    calm: Path, source: Path, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    job_dir = output.with_name("out.jsonl.quire")
    with started(embed(source, output, model, "--option", "max_num_seqs=2")) as process:
        assert wait_until(lambda: journal_bytes(job_dir) > 0)
        kill(process)
    before = journal_bytes(job_dir)
    assert before and not output.exists()
    again = run(embed(source, output, model, "--option", "max_num_seqs=2"))
    assert again.returncode == 3, again.stderr
    assert output.read_bytes() == calm.read_bytes()


def test_parquet_and_what_a_vector_may_be_asked_for(model: Path, tmp_path: Path) -> None:
    rows = [{"title": "w1 w2", "text": "W3"}, {"title": "w4 " * 90, "text": "w5"}]
    output = tmp_path / "out.parquet"
    Job(
        rows,
        output,
        model=str(model),
        embed=True,
        prompt="{{ title }} {{ text }}",
        sampling={"dimensions": 8, "normalize": False, "truncate_prompt_tokens": -1},
        options={"dtype": "float32", "hf_overrides": {"is_matryoshka": True}},
        output_column="vector",
    ).run(progress=False)
    table = parquet.read_table(output)
    assert str(table.schema.field("vector").type) == "list<element: float>"
    assert table.column("prompt_tokens").to_pylist() == [5, 64]
    with open_llm(model) as llm:
        from quire import PoolingParams

        plain = PoolingParams(use_activation=False)
        [whole] = llm.embed("w1 w2 w3", pooling_params=plain, use_tqdm=False)
    first = np.float32(table.column("vector").to_pylist()[0])
    assert np.array_equal(first, whole.outputs.array[:8])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("prompt", {"prompt": None}),
        ("system", {"system": "x"}),
        ("choice", {"choice": ["a", "b"]}),
        ("schema", {"schema": {}}),
        ("chat", {"chat": True}),
        ("max_tokens", {"max_tokens": 5}),
        ("dimensions", {"sampling": {"dimensions": 0}}),
        ("prompt_name", {"sampling": {"prompt_name": 3}}),
    ],
)
def test_what_is_about_answers_is_refused_by_name(
    name: str, given: dict[str, Any], tmp_path: Path
) -> None:
    options = {"prompt": "{{ text }}", **given}
    with pytest.raises(InvalidRequest, match=rf"\b{name}\b"):
        Job([{"text": "a"}], tmp_path / "out.jsonl", model="m", embed=True, **options)
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_is_said_before_any_row(model: Path, tmp_path: Path) -> None:
    with pytest.raises((QuireError, JobError, NotSupported), match="dimensions=8"):
        Job(
            [{"text": "w1"}],
            tmp_path / "out.jsonl",
            model=str(model),
            embed=True,
            prompt="{{ text }}",
            sampling={"dimensions": 8},
        ).run(progress=False)


@pytest.mark.parametrize(("length", "why"), [(2, "leaves no room"), (65, "takes 64 tokens")])
def test_a_length_that_fits_no_text_is_said_before_any_row(
    length: int, why: str, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    job = Job(
        [{"text": "w1"}, {"text": "w2"}],
        output,
        model=str(model),
        embed=True,
        prompt="{{ text }}",
        sampling={"truncate_prompt_tokens": length},
        options={"dtype": "float32"},
    )
    with pytest.raises((QuireError, JobError), match=why):
        job.run(progress=False)
    assert not output.exists()


def test_a_model_in_a_folder_with_a_prompt_that_is_not_pooled(tmp_path: Path) -> None:
    whole = tmp_path / "model"
    (whole / "0_Transformer").mkdir(parents=True)
    write_model(whole / "0_Transformer", ENCODERS["bert"])
    write_sentence_files(whole, "mean_tokens", include_prompt=False)
    listed = json.loads((whole / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (whole / "modules.json").write_text(json.dumps(listed))
    said = {"prompts": {"query": "w9 w8 "}}
    (whole / "config_sentence_transformers.json").write_text(json.dumps(said))
    rows, output = [{"text": text} for text in texts(5)], tmp_path / "out.jsonl"
    Job(
        rows,
        output,
        model=str(whole),
        embed=True,
        prompt="{{ text }}",
        sampling={"prompt_name": "query"},
        options={"dtype": "float32"},
    ).run(progress=False)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    with open_llm(whole) as llm:
        given = [row["text"] for row in rows]
        outputs = llm.embed(given, prompt_name="query", use_tqdm=False)
    for row, one in zip(found, outputs, strict=True):
        assert np.array_equal(np.float32(row["embedding"]), one.outputs.array)


def test_a_vector_in_the_journal_comes_back_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=500), [0.0, -0.0, 1e-40, 3e38]]).astype(np.float32)
    back = decode_vector(encode_vector(values))
    assert np.array_equal(np.float32(back), values)
    assert max(len(repr(one)) for one in back) < 18
