"""`quire run --image`, `--audio` and `--video` over tables: paths, bytes, data: text, lists and
structs; bad ones cost their own row, and a changed file is asked again with --reuse."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from quire.jobs.job import Job
from quire.jobs.output.results import StoredRun
from quire.report.page import report
from quire.report.thumbnails import SIDE, Thumbnails
from tests.media.families import SEEING
from tests.media.hearing import EARS, HEARING, tone, wav
from tests.media.test_videos import mp4
from tests.media.tiny import TinyModel, picture, save_tiny

HERE = "<|vision_start|><|image_pad|><|vision_end|>"
CLIP = "<|vision_start|><|video_pad|><|vision_end|>"
PROMPT = f"{{% if clip %}}{CLIP}{{% else %}}{HERE}{{% endif %}} {{{{ ask }}}}"
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
        **{"image": ("image",), "video": ("clip",), "prompt": PROMPT, **more},
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
    (tmp_path / "2.mp4").write_bytes(mp4(8))
    inline_clip = "data:video/mp4;base64," + base64.b64encode(mp4(8)).decode()
    clips = ["2.mp4", inline_clip, "0.png"]
    rows = [{"ask": "what?", "image": cell, "clip": None} for cell in cells]
    rows += [{"ask": "what?", "image": None, "clip": cell} for cell in clips]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run(model, source, tmp_path / "out.jsonl")
    # The last ones: a place for an image and none, and no image at all.
    assert [row["error"] is None for row in found[:10]] == [True] * 5 + [False] * 5
    assert [row["error"] is None for row in found[10:]] == [True, True, False]
    assert found[10]["output"] == found[11]["output"] and "video" in found[12]["error"]
    assert len({row["output"] for row in found[:4]}) == 1
    assert len({row["prompt_tokens"] for row in found[:5]}) == 1
    assert {row["error_type"] for row in found[5:9]} == {"invalid_prompt"}
    check_reuse(model, source, found)
    check_pictures(tmp_path / "out.jsonl")


def check_reuse(model: TinyModel, source: Path, before: list[dict[str, Any]]) -> None:
    """A finished job is left as it is; with `reuse`, rows whose files changed are asked again."""
    folder, output = source.parent, source.parent / "out.jsonl"
    asked = contents_of(output)
    (folder / "1.png").write_bytes(png(7))
    (folder / "absent.png").write_bytes(png(8))
    assert run(model, source, output) == before and contents_of(output) == asked
    after = run(model, source, output, reuse=True)
    changed = [old != new for old, new in zip(asked, contents_of(output), strict=True)]
    assert changed == [False] * 4 + [True] * 2 + [False] * 7
    assert after[:4] == before[:4] and after[5]["error"] is None
    assert after[6:] == before[6:]


def contents_of(output: Path) -> list[str]:
    """What each row of a job was asked, as hashes."""
    return [row.record.content for row in StoredRun.open(output).rows()]


def check_pictures(output: Path) -> None:
    """The page of the job has small pictures of what its rows were asked about."""
    stored = StoredRun.open(output)
    with Thumbnails(stored) as thumbnails:
        made = [thumbnails.of(row.columns) for row in stored.rows()]
    assert [len(pictures) for pictures in made] == [1] * 6 + [0] * 7
    small = Image.open(io.BytesIO(base64.b64decode(made[0][0])))
    assert small.format == "JPEG" and max(small.size) <= SIDE
    html = report([stored])
    assert "img-src data:;" in html
    data = re.search(r'id="quire-data"[^>]*>(.*?)</script>', html, re.S)
    assert data is not None
    chunk = json.loads(data[1])["rows"]["chunks"][0]
    table = json.loads(gzip.decompress(base64.b64decode(chunk)))
    assert table["pictures"] == [list(pictures) for pictures in made]
    with Thumbnails(stored) as full:
        full._room = 1
        shown = [len(full.of(row.columns)) for row in stored.rows()]
        assert shown == [1] + [0] * 12  # no more room


@pytest.mark.long
def test_bytes_of_a_dataset(model: TinyModel, tmp_path: Path) -> None:
    cells = [{"bytes": png(seed), "path": "bare name.png"} for seed in (0, 1, 0)]
    bad = [{"bytes": b"no image", "path": None}]
    table = pa.table({"ask": ["what?"] * 4, "image": [*cells, *bad], "clip": [None] * 4})
    parquet.write_table(table, tmp_path / "in.parquet")
    found = run(model, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [row["error"] is None for row in found] == [True, True, True, False]
    assert found[0]["output"] == found[2]["output"]


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
        video=None,
        audio=("call",),
        prompt="<|AUDIO|> {{ ask }}",
    )
    assert [row["error"] is None for row in found] == [True, True, False, False]
    assert found[0]["output"] == found[1]["output"]
    assert {row["error_type"] for row in found[2:]} == {"invalid_prompt"}
