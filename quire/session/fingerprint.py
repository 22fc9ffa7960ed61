"""A fingerprint of everything that a model computes with: all its weights, and what its config
makes of them.

Reading gigabytes at every start would cost seconds, so the hash of a file is kept in QUIRE_HOME
beside the file's stamp (inode, size, times). A file that was touched is read again.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

from quire.base.home import keep, kept
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

KEPT = "file-hashes.json"
_PIECE = 1 << 24
# Facts of a spec that no weight shows, and those that most models do not have: these count where
# they are there, so that verdicts which were kept before stay.
FACTS = (
    *("family", "num_heads", "head_dim", "norm_eps"),
    *("rope_theta", "rope_scaling", "windows"),
)
RARE = ("rotary_dims",)


def model_fingerprint(files: ModelFiles, spec: ModelSpec, arithmetic: str) -> str:
    """Of the arithmetic, the weights in full, and the facts that are not in their shapes."""
    made = hashlib.sha256(arithmetic.encode())
    facts = tuple(getattr(spec, name) for name in FACTS)
    rare = {name: getattr(spec, name) for name in RARE}
    there = tuple(f"{name}={value}" for name, value in rare.items() if value is not None)
    made.update(repr((*facts, *there)).encode())
    for path in sorted({tensor.path for tensor in files.stored_tensors().values()}):
        made.update(_file_hash(path).encode())
    return made.hexdigest()[:32]


def _file_hash(path: Path) -> str:
    place = path.resolve()
    found = place.stat()
    stamp = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    match kept(KEPT).get(str(place)):
        case {"stamp": known, "sha256": str(made)} if known == stamp:
            return made
    sha256 = hashlib.sha256()
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for at in range(0, len(data), _PIECE):
            sha256.update(data[at : at + _PIECE])
    keep(KEPT, str(place), {"stamp": stamp, "sha256": sha256.hexdigest()})
    return sha256.hexdigest()
