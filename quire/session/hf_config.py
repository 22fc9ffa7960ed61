"""A model's config as scripts read it: an object with the names that Transformers uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from quire.families.registry import family_named
from quire.sampling.call_threads import attempt
from quire.spec import ModelSpec


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The values of a config.json, for models whose files have none."""
    eos, plans = list(spec.eos_ids), [layer.attention for layer in spec.layers]
    # Some configs name the rope of layers with a window separately; this is the other one.
    rope = next((one.rope for one in plans if one.window is None and one.rope), spec.rope)
    attending = {
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rope_theta": rope.theta,
        "attention_bias": plans[0].qkv_bias,
    }
    return {
        **(attending if spec.attentions else {}),
        "architectures": list(family_named(spec.family).architectures),
        "model_type": family_named(spec.family).model_types[0],
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "max_position_embeddings": spec.max_model_len,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embeddings,
        "bos_token_id": spec.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "dtype": spec.dtype,
    }


def config_object(values: Mapping[str, Any], family: str) -> Any:
    """A Transformers config with these values; a plain namespace without Transformers, or if it
    does not accept them."""
    named = {"model_type": family, **values}
    try:
        from transformers import AutoConfig
    except ImportError:
        return SimpleNamespace(**named)
    # Foreign code that checks the values by its own rules. Ours were checked when the model was
    # loaded, and scripts that read single values can use either object.
    made = attempt(lambda: AutoConfig.for_model(**named)).made
    return SimpleNamespace(**named) if made is None else made
