"""GPT-Neo: GPT-2 with q, k and v apart and without biases, scores that are not scaled, and windows
in some layers. No torch."""

from __future__ import annotations

from typing import Any

from quire.families import gpt2
from quire.families.family import Family, LayerNames, Name
from quire.families.fields import Fields
from quire.families.reading import MAX_LAYERS, num_layers, read_decoder_with_table
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec

WORDS = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
TYPES = [[["global", "local"], 12]]


def read(fields: Fields) -> ModelSpec:
    said = fields.under(WORDS, max_position_embeddings=2048)
    width = fields.count("intermediate_size", 4 * fields.count("hidden_size"))
    activation = gpt2.ACTIVATIONS[fields.word("activation_function", "gelu_new")]
    spec = read_decoder_with_table(
        said,
        max_len=said.count("max_position_embeddings"),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        norm_eps=fields.positive("layer_norm_epsilon", 1e-5),
        scale=1.0,
        o_bias=True,
    )
    return spec.with_windows(*_windows(fields, num_layers(said)))


def _windows(fields: Fields, count: int) -> list[int | None]:
    """The kinds of layers are listed with how often each list is repeated. The key
    `attention_layers` has them one by one, but Transformers makes it anew."""
    window = fields.count("window_size", 256)
    meaning, given = {"global": None, "local": window}, fields.values.get("attention_types")
    made: list[int | None] = []
    for kinds, times in _items(fields, TYPES if given is None else given):
        made += [meaning[kind] for kind in kinds] * min(times, MAX_LAYERS)
        if len(made) > count:
            break
    if len(made) != count:
        raise fields.wrong("attention_types", f"kinds of {count} layers, as num_layers says")
    return made


def _items(fields: Fields, given: Any) -> list[tuple[list[str], int]]:
    def is_item(one: Any) -> bool:
        is_pair = isinstance(one, list | tuple) and len(one) == 2
        return is_pair and isinstance(one[0], list | tuple) and type(one[1]) is int

    known = isinstance(given, list | tuple) and all(map(is_item, given))
    if not known or any(kind not in ("global", "local") for kinds, _ in given for kind in kinds):
        raise fields.wrong("attention_types", "a list of [[global or local, ...], times]")
    return list(given)


FAMILY = Family(
    name="gpt_neo",
    architectures=("GPTNeoForCausalLM",),
    read=read,
    unsaid={"vocab_size": 50_257, "hidden_size": 2048, "num_layers": 24, "num_heads": 16},
    outer_names=gpt2.FAMILY.outer_names,
    names=LayerNames(
        attn_norm=Name("ln_1", "attn_norm"),
        qkv=tuple(Name(f"attn.attention.{one}_proj", f"attn_{one}") for one in "qkv"),
        o=Name("attn.attention.out_proj", "attn_output"),
        mlp_norm=Name("ln_2", "ffn_norm"),
        up=Name("mlp.c_fc", "ffn_up"),
        down=Name("mlp.c_proj", "ffn_down"),
    ),
    buffers=("attn.attention.bias", "attn.attention.masked_bias"),
    without_effect={
        **dict.fromkeys(("resid_dropout", "embed_dropout", "classifier_dropout"), "training"),
        "attention_layers": "Transformers makes it of attention_types",
    },
    only={"activation_function": tuple(gpt2.ACTIVATIONS)},
)
