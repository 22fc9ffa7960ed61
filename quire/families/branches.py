"""Reads what layers consist of, from configs that list every branch as a layer. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, GGUF_KV, KEEPS_STATE
from quire.families.mamba import GGUF_SSM, KINDS, gguf_state
from quire.families.mixtures import GGUF_ROUTING, gguf_routing
from quire.families.reading import MAX_LAYERS

PATTERN = "hybrid_override_pattern"
MLP, MOE, SHARED = "mlp", "moe", "moe_shared_expert_intermediate_size"
_WIDTHS, _SHARED_WIDTH = "feed_forward_length", "expert_shared_feed_forward_length"
_WORDS = {
    "reach": "conv_kernel",
    "key": "ssm_state_size",
    "keys": "n_groups",
    "heads": "mamba_num_heads",
    "size": "mamba_head_dim",
}


def branches_of(
    fields: Fields, usual: Sequence[str], letters: Mapping[str, str], following: Collection[str]
) -> list[tuple[str, str | None]]:
    """Of each layer its first branch, and the one of the kinds `following` that comes behind it, if
    any: Mamba, experts, attention, Mamba -> (Mamba, experts), (attention, None), (Mamba, None).

    Branches are listed by name, or in a pattern by letter; `usual`: those that a config leaves
    out."""
    known, made = (
        {**KINDS, **{kind: kind for kind in letters.values()}},
        list[tuple[str, str | None]](),
    )
    for number, name in enumerate(_listed(fields, usual, letters)):
        kind = known.get(name) if isinstance(name, str) else None
        if kind is None:
            raise UnsupportedModel(f"{fields.source}: layer type {str(name)[:40]!r}")
        if kind not in following:
            made.append((kind, None))
        elif made and made[-1][1] is None:
            made[-1] = made[-1][0], kind
        else:
            raise UnsupportedModel(
                f"{fields.source}: layer {number} is a feed-forward, and comes first or behind "
                "another; quire has one behind each layer that attends or keeps a state"
            )
    return made


def _listed(fields: Fields, usual: Sequence[str], letters: Mapping[str, str]) -> Sequence[object]:
    for key in ("layers_block_type", "layer_types"):
        given = fields.values.get(key)
        if given is not None:
            if not isinstance(given, list) or not 0 < len(given) <= MAX_LAYERS:
                raise fields.wrong(key, f"a list of 1 to {MAX_LAYERS:,} names")
            return given
    pattern = fields.word(PATTERN, "")
    if len(pattern) > MAX_LAYERS:
        raise fields.wrong(PATTERN, f"of at most {MAX_LAYERS:,} letters")
    return [letters.get(letter, letter) for letter in pattern] or usual


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Config values from the metadata of a GGUF file, which has numbers for each branch: KV heads
    where it attends, a width where it is a feed-forward or experts, neither where it is Mamba-2."""
    arch, routing = fields.word("general.architecture"), {}
    count, mixed = config["num_hidden_layers"], MOE if "num_experts" in config else MLP
    if mixed == MOE:
        routing = gguf_routing(fields, arch, config)
        count = routing["num_hidden_layers"]
        if routing["n_group"] > 1 and not fields.values.get(f"{arch}.expert_group_used_count"):
            raise fields.unsupported(
                f"{arch}.expert_group_count", "1 unless it says how many count"
            )
        routing[SHARED] = fields.count(f"{arch}.{_SHARED_WIDTH}")
    heads, widths = (_by_branch(fields, f"{arch}.{key}", count) for key in (GGUF_KV, _WIDTHS))
    return {
        **routing,
        **gguf_state(fields, _WORDS),
        "layer_norm_epsilon": config["rms_norm_eps"],
        "layers_block_type": [
            ATTENDS if kv_heads else mixed if width else KEEPS_STATE
            for kv_heads, width in zip(heads, widths, strict=True)
        ],
    }


def _by_branch(fields: Fields, key: str, count: int) -> list[Any]:
    numbers = fields.values.get(key)
    if not isinstance(numbers, list) or len(numbers) < count:
        raise fields.wrong(key, f"a list of {count} numbers")
    return numbers[:count]


# What a Family says of these files.
IN_GGUF: dict[str, Any] = {
    "gguf_experts": None,
    "gguf_words": _gguf_words,
    "gguf_reads": (*GGUF_SSM, *GGUF_ROUTING, _SHARED_WIDTH),
    "gguf_by_layer": (GGUF_KV, _WIDTHS),
}
