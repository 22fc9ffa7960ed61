"""`quire run --image` and `--audio` over tables: paths, bytes, data: text, lists and structs; bad
ones cost their own row, and a changed image is another job's row."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from quire.errors import JobChanged
from quire.jobs.job import Job
from tests.media.families import SEEING
from tests.media.hearing import EARS, HEARING, tone, wav
from tests.media.tiny import TinyModel, picture, save_tiny

HERE = "<|vision_start|><|image_pad|><|vision_end|>"
OPTIONS = {"dtype": "float32", "quantization": "none", "kv_cache_memory_bytes": 16 << 20}


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    family = SEEING["qwen3_vl"]
    path = tmp_path_factory.mktemp("jobs")
    return save_tiny(path, family.make(), family.added, family.processor)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    picture(40, 30, seed).save(file, "PNG")
    return file.getvalue()


def run(model: TinyModel, source: Path, output: Path, **more: Any) -> list[dict[str, Any]]:
    job = Job(
        input=(str(source),),
        output=str(output),
        model=str(model.path),
        chat=False,
        sampling={"max_tokens": 4},
        options=OPTIONS,
        **{"image": ("image",), "prompt": f"{HERE} {{{{ ask }}}}", **more},
    )
    job.run()
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_cells_of_every_kind(model: TinyModel, tmp_path: Path) -> None:
    for seed in range(2):
        (tmp_path / f"{seed}.png").write_bytes(png(seed))
    inline = "data:image/png;base64," + base64.b64encode(png(0)).decode()
    cells: list[Any] = [
        "0.png",
        inline,
        {"bytes": None, "path": "0.png"},
        ["0.png"],
        "1.png",
        "absent.png",
        "/etc/passwd",
        "../0.png",
        None,
        17,
    ]
    rows = [{"ask": "what?", "image": cell} for cell in cells]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run(model, source, tmp_path / "out.jsonl")
    assert [row["error"] is None for row in found] == [True] * 5 + [False] * 3 + [True, False]
    assert len({row["output"] for row in found[:4]}) == 1
    assert len({row["prompt_tokens"] for row in found[:5]}) == 1
    assert {row["error_type"] for row in found[5:8]} == {"invalid_prompt"}


@pytest.mark.long
def test_bytes_of_a_dataset(model: TinyModel, tmp_path: Path) -> None:
    cells = [{"bytes": png(seed), "path": "bare name.png"} for seed in (0, 1, 0)]
    bad = [{"bytes": b"no image", "path": None}]
    table = pa.table({"ask": ["what?"] * 4, "image": [*cells, *bad]})
    parquet.write_table(table, tmp_path / "in.parquet")
    found = run(model, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [row["error"] is None for row in found] == [True, True, True, False]
    assert found[0]["output"] == found[2]["output"]


@pytest.mark.long
def test_an_image_that_changed_is_asked_again(model: TinyModel, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"ask": "what?", "image": "0.png"}\n')
    (tmp_path / "0.png").write_bytes(png(0))
    run(model, source, tmp_path / "out.jsonl")
    with pytest.raises(JobChanged):
        run(model, source, tmp_path / "out.jsonl", prompt=f"{HERE} other {{{{ ask }}}}")


def test_cells_with_sounds(tmp_path: Path, tmp_path_factory: Any) -> None:
    pytest.importorskip("soundfile")
    family = HEARING["qwen2_audio"]
    path = tmp_path_factory.mktemp("hearing")
    model = save_tiny(path, family.make(), family.added, EARS)
    data = wav(tone(0.3))
    (tmp_path / "a.wav").write_bytes(data)
    cells = [
        {"bytes": data, "path": "bare name.wav"},  # as a dataset's feature Audio is stored
        {"bytes": None, "path": "a.wav"},
        {"bytes": b"no sound", "path": None},
        {"bytes": None, "path": "../a.wav"},
    ]
    table = pa.table({"ask": ["what?"] * 4, "call": cells})
    parquet.write_table(table, tmp_path / "in.parquet")
    found = run(
        *(model, tmp_path / "in.parquet", tmp_path / "out.jsonl"),
        image=None,
        audio=("call",),
        prompt="<|AUDIO|> {{ ask }}",
    )
    assert [row["error"] is None for row in found] == [True, True, False, False]
    assert found[0]["output"] == found[1]["output"]
    assert {row["error_type"] for row in found[2:]} == {"invalid_prompt"}
