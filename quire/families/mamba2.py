"""Mamba-2: layers of it alone, without attention and without feed-forwards. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name
from quire.families.fields import Fields
from quire.families.mamba import (
    GGUF_SSM,
    ONLY,
    WITHOUT_EFFECT,
    gguf_state,
    names_of,
    read_mamba_heads,
    room_for_states,
)
from quire.families.reading import num_layers, read_decoder
from quire.layer_plan import LayerPlan, NormPlan
from quire.spec import ModelSpec

# No config says how long texts may be, and nothing in the layers depends on it. GGUF files say the
# same.
UNSAID_LENGTH = 1 << 20
TRAINING = ("time_step_min", "time_step_max", "time_step_floor", "time_step_rank")
OWN = {"mamba_num_heads": "num_heads", "mamba_head_dim": "head_dim", "ssm_state_size": "state_size"}


def read(fields: Fields) -> ModelSpec:
    norm = NormPlan(fields.positive("layer_norm_epsilon", 1e-5))
    state = read_mamba_heads(fields.under(OWN), norm)
    width = fields.count("expand", 2) * fields.count("hidden_size")
    if state.value_width != width:
        heads = f"{state.num_heads} heads of {state.value_dim}"
        raise fields.wrong("expand", f"such that the hidden size times it is as wide as {heads}")
    layer = LayerPlan(room_for_states(state), None, norm, state=state)
    length = fields.count("max_position_embeddings", UNSAID_LENGTH)
    return read_decoder(fields, [layer] * num_layers(fields), max_len=length)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    hidden, words = config["hidden_size"], gguf_state(fields, _WORDS)
    width = words["num_heads"] * words["head_dim"]
    if width % hidden:
        arch = fields.word("general.architecture")
        raise fields.unsupported(f"{arch}.ssm.inner_size", f"a multiple of {hidden}")
    return {**words, "expand": width // hidden, "layer_norm_epsilon": config["rms_norm_eps"]}


_WORDS = {"reach": "conv_kernel", "key": "state_size", "keys": "n_groups", "heads": "num_heads"}
_WORDS |= {"size": "head_dim"}
FAMILY = Family(
    name="mamba2",
    architectures=("Mamba2ForCausalLM",),
    read=read,
    unsaid={"vocab_size": 32_768, "hidden_size": 4096, "num_hidden_layers": 64},
    names=LayerNames(attn_norm=Name("norm", "attn_norm"), **names_of("mixer")),
    outer_names=ModelNames(
        Name("backbone.layers.{}", "blk.{}"),
        embed=Name("backbone.embeddings", "token_embd"),
        norm=Name("backbone.norm_f", "output_norm"),
    ),
    has_states_alone=True,
    gguf="mamba2",
    gguf_words=_gguf_words,
    gguf_reads=GGUF_SSM,
    without_effect={
        **WITHOUT_EFFECT,
        **dict.fromkeys(TRAINING, "training"),
        "rescale_prenorm_residual": "training",
        "residual_in_fp32": "how sums are rounded in 16 bits; quire rounds as in other families",
    },
    only=ONLY,
)
