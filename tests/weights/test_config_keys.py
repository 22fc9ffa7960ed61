"""Every key that a family's config has is read, known to change nothing, or refused.

Which keys there are comes from the installed Transformers and the `gguf` package, so that a new
one shows here before a model with it runs wrong and silently.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from quire.errors import UnsupportedModel
from quire.families.registry import BY_ARCHITECTURE
from quire.weights import gguf_config, hf_config
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from quire.weights.hf_config import spec_from_hf
from tests.families.test_rope_config import HEADS, LONG, YARN
from tests.weights.test_hf_config import LLAMA, LLAMA3_SCALING, family
from tests.weights.tiny import tiny_model, write_gguf

gguf = pytest.importorskip("gguf")

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "ministral": MinistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "phi3": Phi3Config,
    "gemma3": Gemma3TextConfig,
}


class Watched(Mapping[str, Any]):
    """A config that remembers which keys were looked at."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_, self.seen = values, set[str]()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return self.values_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def keys_read(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    watched = Watched(config)
    monkeypatch.setattr(hf_config, "_overridden", lambda *_: watched)
    spec_from_hf(config)
    return watched.seen


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_of_a_config_class_is_accounted_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = f"{name.capitalize()}ForCausalLM"
    plain = {**LLAMA, "architectures": [architecture], "model_type": name, "dtype": "float32"}
    if name == "gemma3":
        plain |= {"model_type": "gemma3_text", "hidden_act": None}
    sliding = {"use_sliding_window": True, "sliding_window": 8}
    long = {**LONG, **{f"{one}_factor": [1.0] * 8 for one in ("short", "long")}}
    others = (sliding, {"rope_scaling": long, "head_dim": 16})
    read = keys_read(plain, monkeypatch).union(
        *(keys_read({**plain, **other}, monkeypatch) for other in others)
    )
    known = {field.name for field in fields(CONFIGS[name])}
    without_effect = {
        *hf_config.WITHOUT_EFFECT,
        *BY_ARCHITECTURE[architecture].without_effect,
    }
    assert known - read - without_effect == set()
    assert not read & without_effect


def test_every_rotary_setting_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    linear = {"rope_type": "linear", "factor": 2.0}
    for kind in (linear, LLAMA3_SCALING, YARN, LONG):
        watched = Watched({**kind, "rope_theta": 1e4})
        inner = hf_config.Fields.inner
        monkeypatch.setattr(
            hf_config.Fields,
            "inner",
            lambda self, key, inner=inner, watched=watched: (
                hf_config.Fields(watched, key) if key == "rope_scaling" else inner(self, key)
            ),
        )
        spec_from_hf({**HEADS, "rope_scaling": kind})
        read |= watched.seen
    # Sections of positions that come from images; with text alone all are the same.
    assert set(typing.get_type_hints(RopeParameters)) - read == {"mrope_section"}


@pytest.mark.parametrize("kind", ROPE_INIT_FUNCTIONS)
def test_every_kind_of_rope_is_built_or_refused_by_name(kind: str) -> None:
    config = {**HEADS, "rope_scaling": {**LLAMA3_SCALING, **YARN, **LONG, "rope_type": kind}}
    if kind in ("linear", "llama3", "yarn", "longrope", "proportional"):
        assert spec_from_hf(config).rope.scaling is not None
    else:
        with pytest.raises(UnsupportedModel, match=kind):
            spec_from_hf(config)


CHANGED: dict[str, Any] = {
    "attention_dropout": 0.5,
    "initializer_range": 0.5,
    "pretraining_tp": 2,
    "chunk_size_feed_forward": 1,
    "use_cache": False,
    "pad_token_id": 7,
    "output_hidden_states": True,
}


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    made: torch.Tensor = model(torch.arange(20)[None]).logits
    return made


def test_keys_without_effect_have_none_in_transformers() -> None:
    model = tiny_model("llama")
    changed = type(model)(type(model.config)(**{**model.config.to_dict(), **CHANGED})).eval()
    changed.load_state_dict(model.state_dict())
    assert torch.equal(logits(model), logits(changed))
    others = {"return_dict", "id2label", "label2id", "problem_type", "transformers_version"}
    assert CHANGED.keys() | others == hf_config.WITHOUT_EFFECT.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("is_causal", False),
        ("is_encoder_decoder", True),
        ("per_layer_config", {"1": {"num_attention_heads": 2}}),
        ("transformers_weights", "other.safetensors"),
    ],
)
def test_values_that_make_another_model_are_refused(key: str, value: Any) -> None:
    for allowed in (None, *hf_config.ONLY[key]):
        spec_from_hf({**LLAMA, key: allowed})
    with pytest.raises(UnsupportedModel, match=key):
        spec_from_hf({**LLAMA, key: value})


def gguf_keys() -> Iterator[str]:
    """Every key of metadata that belongs to an architecture, without its name."""
    rooms: list[Any] = [gguf.Keys]
    while rooms:
        for value in vars(rooms.pop()).values():
            if isinstance(value, type):
                rooms.append(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                yield value.removeprefix("{arch}.")


def test_every_key_of_gguf_is_read_or_changes_nothing_or_is_refused(tmp_path: Path) -> None:
    assert len(list(gguf_keys())) > 80
    model = tiny_model("llama")
    accounted = gguf_config.READ | gguf_config.WITHOUT_EFFECT.keys()
    write_gguf(model, tmp_path / "m")
    file = GgufFile(tmp_path / "m")
    plain = spec_from_gguf(file)
    for key in gguf_keys():
        if key in accounted:
            continue
        file.metadata = {**GgufFile(tmp_path / "m").metadata, f"llama.{key}": 0}
        if key != "attention.causal":
            assert spec_from_gguf(file) == plain
        wrong = 0 if key == "attention.causal" else 3
        file.metadata = {**file.metadata, f"llama.{key}": wrong}
        with pytest.raises(UnsupportedModel):
            spec_from_gguf(file)


def test_a_model_type_beside_another_architecture_is_refused() -> None:
    for model_type in ("granite", "mistral", "qwen2"):
        with pytest.raises(UnsupportedModel, match=f"{model_type}.*model_type.*llama"):
            spec_from_hf({**LLAMA, "model_type": model_type})
    assert spec_from_hf({**LLAMA, "model_type": "granite"}, {"model_type": "llama"})
    chosen = spec_from_hf(family("mistral"), {"architectures": ["LlamaForCausalLM"]})
    assert chosen.family == "llama"
    assert spec_from_hf({**LLAMA, "model_type": None}).family == "llama"
    assert spec_from_hf({**LLAMA, "architectures": None, "model_type": "qwen3"}).family == "qwen3"
