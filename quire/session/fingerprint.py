"""A fingerprint of everything that a model's results depend on: all its weights, and the facts from
its config.

Hashing gigabytes at every start would take seconds, so the hash of each file is kept in QUIRE_HOME
with the file's stamp (inode, size, times). A file whose stamp changed is hashed again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from quire.base.home import add_entry, read_entries
from quire.base.sha256 import sha256_of
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

KEPT = "file-hashes.json"


def model_fingerprint(files: ModelFiles, spec: ModelSpec, arithmetic: str) -> str:
    """A hash of the arithmetic, of all weights, and of facts that their shapes do not show."""
    made = hashlib.sha256(arithmetic.encode())
    made.update(repr(_facts(spec)).encode())
    for path in sorted({tensor.path for tensor in files.stored_tensors().values()}):
        made.update(file_hash(path).encode())
    return made.hexdigest()[:32]


def _facts(spec: ModelSpec) -> tuple[object, ...]:
    """The facts in a spec that no weight shows. For a plain decoder only these few, in their first
    form, so that verdicts kept earlier stay valid; for others every plan."""
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
    around = (spec.norm, spec.embedding_scale, spec.embed_norm, spec.learned_positions, spec.logits)
    later = tuple(one for one in (spec.streams, spec.waves) if one is not None)
    return (*facts, spec.layers, *around, spec.layer_embeddings, *later)


def file_hash(path: Path) -> str:
    """The hash of a file's content."""
    place = path.resolve()
    found = place.stat()
    stamp = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    match read_entries(KEPT).get(str(place)):
        case {"stamp": known, "sha256": str(made)} if known == stamp:
            return made
    sha256 = sha256_of(place)
    add_entry(KEPT, str(place), {"stamp": stamp, "sha256": sha256})
    return sha256
