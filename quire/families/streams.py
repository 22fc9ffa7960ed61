"""Reads configs of models with several streams, and what their GGUF files say. No torch."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from quire.families.fields import Fields
from quire.layer_parts.streams import StreamsPlan

MOST_STREAMS = 64


def read_streams(fields: Fields) -> StreamsPlan:
    count, active = (
        fields.count("altup_num_inputs", 4, most=MOST_STREAMS),
        fields.whole("altup_active_idx", 0),
    )
    if active >= count:
        raise fields.wrong("altup_active_idx", f"below {count}, the number of streams")
    return StreamsPlan(count, active, fields.count("laurel_rank", 64))


# Keys of GGUF metadata, and the config's for the same. Early files say no softcap; what a config
# means that says none is right for them, too.
_SAME = {
    "altup.num_inputs": "altup_num_inputs",
    "altup.active_idx": "altup_active_idx",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "final_logit_softcapping": "final_logit_softcapping",
}
_CUTOFFS = "activation_sparsity_scale"


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    arch = fields.word("general.architecture")
    given = {key.removeprefix(f"{arch}."): value for key, value in fields.values.items()}
    cutoffs = given.get(_CUTOFFS)
    if not isinstance(cutoffs, list) or not all(isinstance(one, float) for one in cutoffs):
        raise fields.wrong(f"{arch}.{_CUTOFFS}", "a list of numbers, one for each layer")
    return {
        **{ours: given[key] for key, ours in _SAME.items() if key in given},
        "intermediate_size": given.get("feed_forward_length"),
        # Cutoffs are float32, which have seven digits.
        "activation_sparsity_pattern": [round(NormalDist().cdf(one), 6) for one in cutoffs],
        "rope_local_base_freq": fields.positive(f"{arch}.rope.freq_base_swa", 1e4),
        "sliding_window": fields.count(f"{arch}.attention.sliding_window"),
    }


# What a Family says of these files.
IN_GGUF: dict[str, Any] = {
    "gguf_windows": True,
    "gguf_words": _gguf_words,
    "gguf_reads": (*_SAME, _CUTOFFS),
    "gguf_by_layer": ("feed_forward_length",),
}
