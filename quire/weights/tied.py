"""Checks whether a model that should share one matrix for embedding and head has two. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.base.notes import note
from quire.families.registry import family_named
from quire.spec import ModelSpec
from quire.weights.formats import StoredTensor
from quire.weights.source import ModelFiles
from quire.weights.stored_names import stored_name

_PIECE = 1 << 22


def with_stored_head(files: ModelFiles, spec: ModelSpec) -> ModelSpec:
    """The spec, untied if the files have another head: as in Transformers, a stored head wins over
    `tie_word_embeddings`. GGUF files have no such key."""
    if files.kind != "hf" or not spec.tied_embeddings:
        return spec
    stored = files.stored_tensors()
    names = (head_name(spec), f"{family_named(spec.family).outer_names.embed.hf}.weight")
    head, embedding = (stored.get(stored_name(name, stored)) for name in names)
    if head is None or embedding is None or _same_bytes(head, embedding):
        return spec
    note(
        f"tie_word_embeddings is true, but {head.name} is another matrix than the embedding: "
        "it is used"
    )
    return replace(spec, tied_embeddings=False)


def head_name(spec: ModelSpec) -> str:
    return head_names(spec)[0]


def head_names(spec: ModelSpec) -> tuple[str, ...]:
    """The head's name in files, and what Transformers calls it if that is another."""
    head = family_named(spec.family).outer_names.head
    return tuple(f"{name}.weight" for name in (head.hf, head.hf_also) if name)


def _same_bytes(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.shape, one.format) != (other.shape, other.format):
        return False
    with one.path.open("rb") as first, other.path.open("rb") as second:
        first.seek(one.offset)
        second.seek(other.offset)
        left = one.num_bytes
        while left:
            piece = min(left, _PIECE)
            if first.read(piece) != second.read(piece):
                return False
            left -= piece
    return True
