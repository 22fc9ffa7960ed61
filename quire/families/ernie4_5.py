"""ERNIE 4.5: interleaved pairs in rope, and one flag for every bias. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

THETA = 500_000.0


def read(fields: Fields) -> ModelSpec:
    return read_paired(fields, kv_heads=2, head_dim=128)


def read_paired(fields: Fields, *, kv_heads: int, head_dim: int | None = None) -> ModelSpec:
    """A decoder without experts; the arguments are defaults."""
    return with_pairs_side_by_side(read_plain(fields, kv_heads=kv_heads, head_dim=head_dim))


def read_plain(fields: Fields, *, kv_heads: int, head_dim: int | None = None) -> ModelSpec:
    """The same, with the pairs of rope in the usual order."""
    heads = read_heads(fields, kv_heads=kv_heads, head_dim=head_dim)
    biased = fields.flag("use_bias", False)
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=THETA),
        norm_eps=1e-5,
        qkv_bias=biased,
        o_bias=biased,
        mlp_bias=biased,
        facts={"tied_embeddings": fields.flag("tie_word_embeddings", True)},
    )


FAMILY = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM",),
    read=read,
    unsaid=sizes(103_424, 1024, 3072, 18, 16, 131_072),
    gguf="ernie4_5",
)
