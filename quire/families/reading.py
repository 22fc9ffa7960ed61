"""Readers of fields that mean the same in most configs, shared by the families' files. No torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.fields import Fields
from quire.families.rope_config import RopeSettings, read_rope
from quire.layer_plan import AttentionPlan, CrossPlan, ExpertsPlan, LayerPlan, MlpPlan, NormPlan
from quire.spec import LearnedPositions, LogitsPlan, ModelSpec

MAX_LAYERS = 10_000
UNSAID_DTYPE = "float32"
_DTYPES = ("float32", "bfloat16", "float16")
_LAYER_KINDS = {"attention": "full_attention"}  # names in older files


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    kv_heads: int
    head_dim: int


def read_heads(
    fields: Fields, *, kv_heads: int | None = None, head_dim: int | None = None
) -> Heads:
    """The heads of a config. `kv_heads` and `head_dim` are defaults. A null num_key_value_heads
    means as many as heads; head_dim is hidden size / heads if null or without a default."""
    heads = fields.count("num_attention_heads")
    unsaid = heads if "num_key_value_heads" in fields.values else kv_heads or heads
    found = fields.count("num_key_value_heads", unsaid)
    if "head_dim" in fields.values and fields.values["head_dim"] is None:
        head_dim = None
    if heads % found:
        raise CorruptModel(
            f"{fields.source}: {heads} attention heads do not divide among {found} key/value heads"
        )
    hidden = fields.count("hidden_size")
    if fields.values.get("head_dim") is None and head_dim is None and hidden % heads:
        raise CorruptModel(
            f"{fields.source}: hidden_size {hidden} does not divide among {heads} heads"
        )
    size = fields.count("head_dim", head_dim or hidden // heads)
    if size % 2:
        raise UnsupportedModel(f"{fields.source}: head_dim {size} is odd; rotary needs pairs")
    return Heads(heads, found, size)


def read_biases(fields: Fields, *, unsaid: bool = False) -> dict[str, Any]:
    """Whether attention has biases, for configs with one flag for all of them."""
    biased = fields.flag("attention_bias", unsaid)
    return {"qkv_bias": biased, "o_bias": biased}


def read_decoder(
    fields: Fields,
    layers: Sequence[LayerPlan],
    *,
    max_len: int,
    **facts: Any,
) -> ModelSpec:
    """The spec of a decoder with these layers, from fields that all configs have. `facts` are other
    fields of the spec. The norm after the last layer is like the norms inside it."""
    bos = fields.ids("bos_token_id")
    usual: dict[str, Any] = {
        "norm": layers[-1].norm,
        "tied_embeddings": fields.flag("tie_word_embeddings", False),
        "eos_ids": fields.ids("eos_token_id"),
    }
    return ModelSpec(
        family="",  # Family.spec sets it
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        max_model_len=max_len,
        layers=tuple(layers),
        bos_id=bos[0] if bos else None,
        dtype=read_dtype(fields),
        **{**usual, **facts},
    )


def read_plain_decoder(
    fields: Fields,
    heads: Heads,
    *,
    rope: RopeSettings | None = None,
    window: int | None = None,
    windows: Sequence[int | None] | None = None,
    norm: NormPlan | None = None,
    norm_eps: float = 1e-6,
    qk_norm: bool = False,
    mlp: MlpPlan | ExpertsPlan | None = None,
    mlp_bias: bool = False,
    layer: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    **attention: Any,
) -> ModelSpec:
    """As read_decoder, for layers that differ only in their `windows`, or all have one `window`.
    They have RMSNorm before both branches and a silu gate unless `norm`, `mlp` and `layer` (fields
    of LayerPlan) say otherwise. `norm_eps` is a default, `facts` are other fields of the spec,
    `attention` of AttentionPlan."""
    rope = rope or read_rope(fields, heads.head_dim)
    norm = norm or NormPlan(fields.positive("rms_norm_eps", norm_eps))
    mlp = mlp or MlpPlan(fields.count("intermediate_size"), bias=mlp_bias)
    usual = {
        "scale": heads.head_dim**-0.5,
        "rope": rope.rope,
        "qk_norm": norm if qk_norm else None,
    }
    plan = AttentionPlan(heads.heads, heads.kv_heads, heads.head_dim, **{**usual, **attention})
    seen = windows or (window,) * num_layers(fields)
    layers = [LayerPlan(replace(plan, window=w), mlp, norm, **(layer or {})) for w in seen]
    return read_decoder(fields, layers, max_len=rope.max_len, **(facts or {}))


def read_decoder_with_table(
    fields: Fields,
    *,
    max_len: int,
    mlp: MlpPlan,
    norm_eps: float,
    before: int = 0,
    cross: CrossPlan | None = None,
    facts: Mapping[str, Any] | None = None,
    **attention: Any,
) -> ModelSpec:
    """As read_decoder, with a learned table of positions that has `before` rows ahead of the first
    token's; LayerNorm before each branch. There are as many KV heads as heads
    unless `attention`, fields of AttentionPlan, says another number. `facts` are other fields of
    the spec."""
    heads = read_heads(fields)
    sizes = {"num_heads": heads.heads, "num_kv_heads": heads.heads, "head_dim": heads.head_dim}
    usual = {**sizes, "scale": heads.head_dim**-0.5, "rope": None}
    plan = AttentionPlan(**{**usual, **attention})
    layer = LayerPlan(plan, mlp, NormPlan(norm_eps, kind="layer", bias=True), cross=cross)
    usual_facts = {
        "learned_positions": LearnedPositions(max_len + before, before),
        "tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    layers = [layer] * num_layers(fields)
    return read_decoder(fields, layers, max_len=max_len, **{**usual_facts, **(facts or {})})


def num_layers(fields: Fields) -> int:
    return fields.count("num_hidden_layers", most=MAX_LAYERS)


def read_window(fields: Fields, unsaid: int | None = 4096) -> int | None:
    """The window of layers that have one; null means none."""
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return None
    absent = fields.values.get("sliding_window") is None
    return unsaid if absent else fields.count("sliding_window")


def windows_by_kind(fields: Fields, window: int | None) -> tuple[int | None, ...] | None:
    """The windows of all layers by `layer_types`, None if the config does not have it."""
    kinds, count = fields.values.get("layer_types"), num_layers(fields)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != count:
        raise fields.wrong("layer_types", f"a list of {count} names")
    meaning = {"full_attention": None, "sliding_attention": window}
    windows = []
    for kind in kinds:
        name = _LAYER_KINDS.get(kind, kind) if isinstance(kind, str) else None
        if name not in meaning:
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
        if name == "sliding_attention" and window is None:
            raise CorruptModel(
                f"{fields.source}: layer_types has sliding_attention, but no sliding_window is set"
            )
        windows.append(meaning[name])
    return tuple(windows)


def windows_in_turn(fields: Fields, window: int | None, period: int) -> tuple[int | None, ...]:
    """As windows_by_kind; without `layer_types` all layers but the last of every `period` have a
    window."""
    usual = (window if (i + 1) % period else None for i in range(num_layers(fields)))
    return windows_by_kind(fields, window) or tuple(usual)


def windows_from_a_layer_on(
    fields: Fields, has_window: Callable[[int, int], bool] = operator.ge
) -> tuple[int | None, ...]:
    """Windows that a flag switches on, from layer `max_window_layers` on, or in layers for which
    `has_window(layer, max_window_layers)` is true."""
    on = fields.flag("use_sliding_window", False)
    window = read_window(fields) if on else None
    by_kind = windows_by_kind(fields, window)
    if by_kind is not None or window is None:
        return by_kind or (None,) * num_layers(fields)
    fields.refuse_null("max_window_layers")
    first = fields.whole("max_window_layers", 28)
    return tuple(window if has_window(i, first) else None for i in range(num_layers(fields)))


def read_turned(fields: Fields) -> list[bool]:
    """Which layers have rope: those with a 1 in no_rope_layers, or all but each interval's last."""
    count, marks = num_layers(fields), fields.values.get("no_rope_layers")
    interval = fields.count("no_rope_layer_interval", 4)
    if marks is None or marks == []:
        return [(layer + 1) % interval != 0 for layer in range(count)]
    is_list = isinstance(marks, list) and len(marks) >= count
    if not is_list or any(mark not in (0, 1) for mark in marks):
        raise fields.wrong("no_rope_layers", f"a list of {count} numbers, each 0 or 1")
    return [bool(mark) for mark in marks[:count]]


def read_dtype(fields: Fields) -> str:
    key = "dtype" if fields.values.get("dtype") is not None else "torch_dtype"
    name = fields.word(key, UNSAID_DTYPE).removeprefix("torch.")
    name = UNSAID_DTYPE if name == "auto" else name
    if name not in _DTYPES:
        raise UnsupportedModel(
            f"{fields.source}: weights in {name[:40]!r}; quire reads {', '.join(_DTYPES)}"
        )
    return name


def read_half_turned(fields: Fields, **layer: Any) -> ModelSpec:
    """A decoder with rope on half of each head, with interleaved pairs, and biases of q, k and v.
    `layer` are fields of its layers."""
    heads = read_heads(fields, kv_heads=2, head_dim=128)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm_eps=1.5625e-07,
        qkv_bias=fields.flag("attention_bias", True),
        layer=layer,
        facts={"eos_ids": fields.ids("eos_token_id") or (151329, 151336, 151338)},
    )
    return with_pairs_side_by_side(spec)


def read_one_plus(
    fields: Fields, kv_heads: int, *, facts: Mapping[str, Any] | None = None, **given: Any
) -> ModelSpec:
    """A decoder with norms of 1 + w, a gelu gate, and embeddings times the root of the hidden size.
    `given`: more arguments of read_plain_decoder."""
    own = {
        "embedding_scale": fields.count("hidden_size") ** 0.5,
        "tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=kv_heads, head_dim=256),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-6), one_plus=True),
        mlp=MlpPlan(fields.count("intermediate_size"), "gelu_tanh"),
        **read_biases(fields),
        facts={**own, **(facts or {})},
        **given,
    )


def read_parallel(
    fields: Fields, *, head_dim: int | None = None, norm: NormPlan | None = None, **given: Any
) -> ModelSpec:
    """A decoder with one norm before both branches, which is a LayerNorm without bias unless `norm`
    is given. `head_dim` is a default, `given` are more arguments of read_plain_decoder."""
    return read_plain_decoder(
        fields,
        read_heads(fields, head_dim=head_dim),
        norm=norm or NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer"),
        **read_biases(fields),
        layer={"norms": "parallel"},
        facts={
            "tied_embeddings": fields.flag("tie_word_embeddings", True),
            "logits": LogitsPlan(scale=fields.positive("logit_scale", 0.0625)),
        },
        **given,
    )


def with_rope_of_windows(spec: ModelSpec, rope: RopeSettings) -> ModelSpec:
    """The same model, with another rope in the layers that have a window."""

    def by_kind(one: AttentionPlan) -> AttentionPlan:
        return one if one.window is None else replace(one, rope=rope.rope)

    return spec.with_attention(by_kind)


def with_pairs_side_by_side(spec: ModelSpec) -> ModelSpec:
    """The same model, in whose files rope rotates numbers 2 i and 2 i + 1 of a head as a pair."""

    def apart(one: AttentionPlan) -> AttentionPlan:
        return replace(one, rope=one.rope and replace(one.rope, interleaved=True))

    return spec.with_attention(apart)
