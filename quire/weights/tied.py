"""Whether a model that should share one matrix for embedding and head has two of them. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.base.notes import note
from quire.spec import ModelSpec
from quire.weights.formats import StoredTensor
from quire.weights.source import ModelFiles
from quire.weights.stored_names import stored_name

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
_PIECE = 1 << 22


def with_stored_head(files: ModelFiles, spec: ModelSpec) -> ModelSpec:
    """The spec, untied where the files hold a head of their own: as in Transformers, what is
    stored counts for more than `tie_word_embeddings`. A GGUF file has no such word."""
    if files.kind != "hf" or not spec.tied_embeddings:
        return spec
    stored = files.stored_tensors()
    head, embedding = (stored.get(stored_name(name, stored)) for name in (HEAD, EMBEDDING))
    if head is None or embedding is None or _same_bytes(head, embedding):
        return spec
    note(
        f"tie_word_embeddings is true, but {HEAD} is another matrix than the embedding: it is used"
    )
    return replace(spec, tied_embeddings=False)


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
