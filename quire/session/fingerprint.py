"""A fingerprint of everything that a model computes with: all its weights, and what its config
makes of them.

Reading gigabytes at every start would cost seconds, so the hash of a file is kept in QUIRE_HOME
beside the file's stamp (inode, size, times). A file that was touched is read again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from quire.base.home import keep, kept
from quire.base.sha256 import sha256_of
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

KEPT = "file-hashes.json"


def model_fingerprint(files: ModelFiles, spec: ModelSpec, arithmetic: str) -> str:
    """Of the arithmetic, the weights in full, and the facts that are not in their shapes."""
    made = hashlib.sha256(arithmetic.encode())
    made.update(repr(_facts(spec)).encode())
    for path in sorted({tensor.path for tensor in files.stored_tensors().values()}):
        made.update(file_hash(path).encode())
    return made.hexdigest()[:32]


def _facts(spec: ModelSpec) -> tuple[object, ...]:
    """What a spec says that no weight shows. For a plain decoder these few, written as they were
    before there were others, so that verdicts which were kept stay; else every plan."""
    rope, heads = spec.rope, (spec.num_heads, spec.head_dim)
    facts: tuple[object, ...] = (
        spec.family,
        *heads,
        spec.norm_eps,
        rope.theta,
        rope.scaling,
        spec.windows,
    )
    if rope.dims < spec.head_dim:
        facts = (*facts, f"rotary_dims={rope.dims}")
    if spec.is_plain and not rope.interleaved:
        return facts
    around = (spec.norm, spec.embedding_scale, spec.learned_positions, spec.logits)
    return (*facts, spec.layers, *around)


def file_hash(path: Path) -> str:
    """Of all that is in it."""
    place = path.resolve()
    found = place.stat()
    stamp = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    match kept(KEPT).get(str(place)):
        case {"stamp": known, "sha256": str(made)} if known == stamp:
            return made
    sha256 = sha256_of(place)
    keep(KEPT, str(place), {"stamp": stamp, "sha256": sha256})
    return sha256
