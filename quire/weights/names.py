"""quire's own names for a model's weights, their shapes, and what files call the parts. No torch.

One entry per final tensor. Those made of several stored ones list them in row order: of
`layers.0.attn.qkv.weight` the first heads * head_dim rows are q_proj, then k_proj, then v_proj.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor. `heads` > 0: a GGUF of architecture "llama" has its rows rearranged
    within each head, and this is how many heads there are."""

    hf: str
    gguf: str
    rows: int
    heads: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """One final tensor and the stored ones that fill it from the top."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def weights_of(spec: ModelSpec) -> Iterator[Weight]:
    """Every weight the model of this spec has."""
    vocab, hidden = spec.vocab_size, spec.hidden_size
    yield _single("embed.weight", (vocab, hidden), "model.embed_tokens.weight", "token_embd.weight")
    for layer in range(spec.num_layers):
        yield from _attention(spec, f"layers.{layer}.", f"model.layers.{layer}.", f"blk.{layer}.")
        yield from _mlp(spec, f"layers.{layer}.", f"model.layers.{layer}.", f"blk.{layer}.")
    yield _single("norm.weight", (hidden,), "model.norm.weight", "output_norm.weight")
    if not spec.tied_embeddings:
        yield _single("head.weight", (vocab, hidden), "lm_head.weight", "output.weight")


def _single(name: str, shape: tuple[int, ...], hf: str, gguf: str) -> Weight:
    return Weight(name, shape, (Part(hf, gguf, shape[0]),))


def _linear(name: str, columns: int, parts: tuple[Part, ...], *, bias: bool) -> Iterator[Weight]:
    """A matrix and, if the model has it, its bias; both are cut into the same parts."""
    rows = sum(part.rows for part in parts)
    for kind, shape in (("weight", (rows, columns)), ("bias", (rows,))):
        if kind == "weight" or bias:
            named = tuple(
                Part(f"{part.hf}.{kind}", f"{part.gguf}.{kind}", part.rows, part.heads)
                for part in parts
            )
            yield Weight(f"{name}.{kind}", shape, named)


def _attention(spec: ModelSpec, ours: str, hf: str, gguf: str) -> Iterator[Weight]:
    hidden, size = spec.hidden_size, spec.head_dim
    queries, keys = spec.num_heads * size, spec.num_kv_heads * size
    yield _single(
        f"{ours}attn_norm.weight",
        (hidden,),
        f"{hf}input_layernorm.weight",
        f"{gguf}attn_norm.weight",
    )
    qkv = (
        Part(f"{hf}self_attn.q_proj", f"{gguf}attn_q", queries, spec.num_heads),
        Part(f"{hf}self_attn.k_proj", f"{gguf}attn_k", keys, spec.num_kv_heads),
        Part(f"{hf}self_attn.v_proj", f"{gguf}attn_v", keys),
    )
    yield from _linear(f"{ours}attn.qkv", hidden, qkv, bias=spec.qkv_bias)
    if spec.qk_norm:
        for head in ("q_norm", "k_norm"):
            stored = f"{hf}self_attn.{head}.weight", f"{gguf}attn_{head}.weight"
            yield _single(f"{ours}attn.{head}.weight", (size,), *stored)
    output = (Part(f"{hf}self_attn.o_proj", f"{gguf}attn_output", hidden),)
    yield from _linear(f"{ours}attn.o", queries, output, bias=spec.o_bias)


def _mlp(spec: ModelSpec, ours: str, hf: str, gguf: str) -> Iterator[Weight]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    yield _single(
        f"{ours}mlp_norm.weight",
        (hidden,),
        f"{hf}post_attention_layernorm.weight",
        f"{gguf}ffn_norm.weight",
    )
    gate_up = (
        Part(f"{hf}mlp.gate_proj", f"{gguf}ffn_gate", inner),
        Part(f"{hf}mlp.up_proj", f"{gguf}ffn_up", inner),
    )
    yield from _linear(f"{ours}mlp.gate_up", hidden, gate_up, bias=spec.mlp_bias)
    down = (Part(f"{hf}mlp.down_proj", f"{gguf}ffn_down", hidden),)
    yield from _linear(f"{ours}mlp.down", inner, down, bias=spec.mlp_bias)
