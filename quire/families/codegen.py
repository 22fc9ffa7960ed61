"""CodeGen: GPT-J with q, v and k in one matrix, in blocks that each have those of some heads. No
torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import gptj
from quire.families.family import Family, Name
from quire.families.fields import Fields
from quire.spec import ModelSpec

BLOCKS = 4


def read(fields: Fields) -> ModelSpec:
    # The 1B and 3.7B of CodeGen 2 say it, and have 8 blocks; their class in Transformers takes 4.
    if fields.values.get("head_dim") is not None:
        raise fields.wrong("head_dim", "left out: models that say it have q, v and k in 8 blocks")
    spec = gptj.read(fields)
    if spec.num_heads % BLOCKS:
        raise fields.wrong("n_head", f"a multiple of {BLOCKS}: the blocks of q, v and k")
    return spec


FAMILY = Family(
    name="codegen",
    architectures=("CodeGenForCausalLM",),
    read=read,
    unsaid=gptj.FAMILY.unsaid,
    partial_rotary=True,
    outer_names=gptj.FAMILY.outer_names,
    names=replace(gptj.FAMILY.names, qkv=(Name("attn.qkv_proj", "attn_qkv"),), qvk_blocks=BLOCKS),
    buffers=("attn.causal_mask", *gptj.FAMILY.buffers),
    without_effect={**gptj.FAMILY.without_effect, "n_ctx": "Transformers reads it nowhere"},
    only=gptj.FAMILY.only,
)
