"""Reads configs of models whose layers with a window have other heads than those without. No
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.fields import Fields
from quire.families.mixtures import FACTORS
from quire.families.reading import Heads, num_layers, read_heads
from quire.families.rope_config import PROPORTIONAL, RopeSettings, read_rope

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 6  # without `layer_types`: the last layer of each period has no window
# The rope of each kind without `rope_parameters`.
_ROPES: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_OVERRIDDEN = ("head_dim", "num_key_value_heads")


def kinds_of(fields: Fields) -> tuple[str, ...]:
    """The kind of each layer. The last one has no window whatever the config says, as in
    Transformers."""
    count = num_layers(fields)
    usual = [SLIDING if (i + 1) % PERIOD else FULL for i in range(count)]
    given = fields.values.get("layer_types") or usual
    if not isinstance(given, list) or len(given) != count:
        raise fields.wrong("layer_types", f"a list of {count} names")
    for kind in given:
        if kind not in (SLIDING, FULL):
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
    return (*given[:-1], FULL)


def read_kind_heads(
    fields: Fields, kinds: Sequence[str], *, kv_heads: int, head_dim: int, full_head_dim: int
) -> dict[str, Heads]:
    """The heads of each kind of layer; arguments are defaults. Configs say them by
    `per_layer_config`, or those of layers without a window by keys of their own."""
    heads = read_heads(fields, kv_heads=kv_heads, head_dim=head_dim)
    if fields.values.get("per_layer_config") is not None:
        changes = _changes(fields, kinds)
    else:
        changes = {SLIDING: {}, FULL: {"head_dim": fields.count("global_head_dim", full_head_dim)}}
        own = fields.values.get("num_global_key_value_heads")
        if own is not None and fields.flag("attention_k_eq_v", False):
            changes[FULL]["num_key_value_heads"] = own
    kept = {"num_attention_heads": heads.heads, "hidden_size": fields.count("hidden_size")}
    kept |= {"num_key_value_heads": heads.kv_heads, "head_dim": heads.head_dim}
    return {kind: read_heads(Fields(kept | own, fields.source)) for kind, own in changes.items()}


def _changes(fields: Fields, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What `per_layer_config` changes in the layers of each kind, which must be the same. Its keys
    are numbers of layers, all with as many digits, or kinds."""
    said = fields.inner("per_layer_config")
    numbered = {key.lstrip("0") or "0": value for key, value in said.values.items()}
    given, made = Fields(numbered, said.source), dict[str, dict[str, Any]]()
    for index, kind in enumerate(kinds):
        own = given.inner(str(index)).values or given.inner(kind).values
        if strange := sorted(set(own) - set(_OVERRIDDEN)):
            raise given.unsupported(str(index), f"of {' and '.join(_OVERRIDDEN)}, not {strange[0]}")
        if made.setdefault(kind, dict(own)) != own:
            raise given.unsupported(str(index), f"as in the other layers of {kind}")
    return {kind: made.get(kind, {}) for kind in (SLIDING, FULL)}


def kv_source(fields: Fields, kinds: Sequence[str], index: int) -> int | None:
    """The layer whose keys and values layer `index` reads, None for its own: each of the last
    `num_kv_shared_layers` reads those of the last layer of its kind before them."""
    first = len(kinds) - fields.whole("num_kv_shared_layers", 0)
    if index < first:
        return None
    before = [i for i in range(max(first, 0)) if kinds[i] == kinds[index]]
    if not before:
        raise CorruptModel(
            f"{fields.source}: num_kv_shared_layers {len(kinds) - first} leaves no layer of "
            f"{kinds[index]} whose keys and values the others could read"
        )
    return before[-1]


def read_kind_ropes(fields: Fields, heads: Mapping[str, Heads]) -> dict[str, RopeSettings]:
    """The rope of each kind of layer."""
    given = fields.inner("rope_parameters")
    ropes = {}
    for kind, own in heads.items():
        said = {
            "rope_parameters": dict(given.inner(kind).values if given.values else _ROPES[kind]),
            "max_position_embeddings": fields.count("max_position_embeddings"),
        }
        theta = _ROPES[kind]["rope_theta"]
        ropes[kind] = read_rope(Fields(said, given.source), own.head_dim, theta=theta)
    return ropes


# Not of the format: how many pairs of a head do not rotate, by a tensor (weights/gguf_ropes.py).
STILL_PAIRS = "rope.still_pairs"
# Keys of GGUF metadata that say what these models have.
GGUF_READS = (
    *("attention.key_length_swa", "attention.value_length_swa", "attention.value_length"),
    *("rope.dimension_count", "rope.dimension_count_swa", STILL_PAIRS),
    *("attention.shared_kv_layers", "embedding_length_per_layer_input"),
    "final_logit_softcapping",
)
GGUF_BY_LAYER = ("attention.head_count_kv", "feed_forward_length")


def gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """What GGUF metadata say of layers by kind, as a config says it."""
    arch = fields.word("general.architecture")
    given = Fields(
        {key.removeprefix(f"{arch}."): value for key, value in fields.values.items()}, fields.source
    )
    marks = given.values.get("attention.sliding_window_pattern")
    count = config["num_hidden_layers"]
    if not isinstance(marks, list) or len(marks) != count:
        raise given.wrong("attention.sliding_window_pattern", f"a mark for each of {count} layers")
    size, full_size = given.count("attention.key_length_swa"), given.count("attention.key_length")
    if given.count("rope.dimension_count_swa", size) != size:
        raise given.unsupported("rope.dimension_count_swa", f"{size}, all of a head")
    if full_size % 2:
        raise given.wrong("attention.key_length", "even, as rotary needs pairs")
    kv_heads = _of_kinds(given, "attention.head_count_kv", marks, config["num_attention_heads"])
    widths = given.values.get("feed_forward_length")
    pairs = full_size // 2
    turning = pairs - given.whole(STILL_PAIRS, 0)
    return {
        "head_dim": size,
        "global_head_dim": full_size,
        "num_key_value_heads": kv_heads[SLIDING],
        "num_global_key_value_heads": kv_heads[FULL],
        "sliding_window": given.count("attention.sliding_window"),
        "num_kv_shared_layers": given.whole("attention.shared_kv_layers", 0),
        "use_double_wide_mlp": isinstance(widths, list),
        "hidden_size_per_layer_input": given.whole("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": config["vocab_size"],
        "final_logit_softcapping": given.optional("final_logit_softcapping"),
        "enable_moe_block": "num_experts" in config,
        "top_k_experts": config.get("num_experts_per_tok"),
        FACTORS: False,
        "rope_scaling": None,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": given.positive("rope.freq_base_swa")},
            FULL: {
                "rope_type": PROPORTIONAL,
                "rope_theta": config["rope_theta"],
                "partial_rotary_factor": turning / pairs,
            },
        },
    }


def _of_kinds(given: Fields, key: str, marks: list[Any], unsaid: int) -> dict[str, int]:
    """A number for each kind of layer; the file has one for all, or one for each layer."""
    found = given.values.get(key, unsaid)
    each = found if isinstance(found, list) else [found] * len(marks)
    made: dict[str, int] = {}
    for mark, number in zip(marks, each, strict=False):
        kind = SLIDING if mark else FULL
        if made.setdefault(kind, number) != number or len(each) != len(marks):
            raise given.unsupported(key, "the same in all layers of a kind")
    return {kind: made.get(kind, unsaid) for kind in (SLIDING, FULL)}


# What a Family says of these files.
IN_GGUF: dict[str, Any] = {
    "gguf_windows": True,
    "gguf_experts": None,
    "gguf_words": gguf_words,
    "gguf_reads": GGUF_READS,
    "gguf_by_layer": GGUF_BY_LAYER,
}
