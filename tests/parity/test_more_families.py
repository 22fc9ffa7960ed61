"""Families that differ by names and parts, from a directory through LLM, against Transformers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.ernie4_5 import Ernie4_5Config
from transformers.models.smollm3 import SmolLM3Config

from quire.errors import QuireError
from quire.families.family import Family
from quire.families.registry import BY_MODEL_TYPE, FAMILIES
from quire.weights import hf_config
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.executor.harness import Drive, make_runner
from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import LATENTS, MORE, random_model
from tests.parity.newest_families import NEWEST
from tests.parity.test_families import check_directory
from tests.parity.test_logits import NUM_BLOCKS, texts_of
from tests.weights.test_config_keys import keys_read

ALL: dict[str, PretrainedConfig] = {
    **MORE,
    **LATENTS,
    **BY_KIND,
    **WITH_STATES,
    **LATER,
    **NEWEST,
}
RUNS = ((7, 33), (0, 0))
# Without which their classes make no model.
NEEDED: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 128},
    "glm4v": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "glm4v_moe": {"head_dim": 128},
    # The class of the text and that of the whole model differ.
    "qwen3_vl_moe": {"tie_word_embeddings": False},
    "deepseek_v2": {"num_experts_per_tok": 3},
    "helium": {"num_attention_heads": 20},
    "mamba2": {"hidden_size": 4096},
    "gemma3n": {"num_hidden_layers": 35},
    "gptj": {"n_head": 16},
    "codegen": {"n_head": 16},
    "bitnet": {"num_attention_heads": 20, "hidden_size": 2560},
    "gpt_neo": {"num_layers": 24, "hidden_size": 2048},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3},
}
# Whose classes do not say the kinds of layers.
LISTED: dict[str, dict[str, list[Any]]] = {
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
}
KINDS = sorted({type(config) for config in ALL.values()}, key=str)


@pytest.mark.parametrize("name", ALL)
def test_greedy_equals_transformers(name: str, tmp_path: Path, long_mode: bool) -> None:
    oracle = random_model(ALL[name])
    oracle.save_pretrained(tmp_path)
    check_logits(tmp_path, oracle, RUNS if long_mode else RUNS[:1])
    count, most = (8, 16) if long_mode else (4, 8)
    check_directory(tmp_path, oracle, name, count=count, most=most)


def listed(family: str, count: int) -> dict[str, list[Any]]:
    """What such a config says for so many layers: names of their kinds, or the numbers of some."""
    found = LISTED.get(family, {})
    return {
        key: (some * count)[:count] if isinstance(some[0], str) else some
        for key, some in found.items()
    }


def check_logits(path: Path, oracle: Any, runs: Iterable[tuple[int, int]] = RUNS) -> None:
    """In chunks, among rows that come and go; of each run its seed, and how long a beginning its
    rows share."""
    files = locate(path)
    spec = spec_from_hf(read_config(path))
    weights = load_weights(files, spec, dtype=torch.float32, device="cpu")
    for seed, shared in runs:
        texts, num_prompts = texts_of(seed, 4, shared)
        runner, sampler = make_runner(spec, weights, max_len=128)
        made = Drive(runner, sampler, seed, NUM_BLOCKS).run(
            texts, num_prompts, shared=shared, grouped=shared > 0
        )
        for i, text in enumerate(texts):
            with torch.no_grad():
                expected = oracle(torch.tensor([text])).logits[0]
            for (row, at), logits in made.items():
                if row == i:
                    apart = float((logits - expected[at - 1]).abs().max())
                    assert apart <= 2e-5 * float(expected.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_config_class_is_accounted_for(
    kind: type[PretrainedConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in one of the models above, known to change nothing, or refused at another value."""
    mine = [config for config in ALL.values() if type(config) is kind]
    family = BY_MODEL_TYPE[kind.model_type]
    read: set[str] = set()
    for config in mine:
        named = {**config.to_dict(), "architectures": [family.architectures[0]]}
        read |= keys_read(named, monkeypatch)
        # These count where the kinds are not listed.
        if named.keys() & {"max_window_layers", "sliding_window_pattern", "moe_layers"}:
            unlisted = {**named, "layer_types": None, "moe_layers": None}
            read |= keys_read(unlisted, monkeypatch)
    without_effect = {*hf_config.WITHOUT_EFFECT, *family.without_effect}
    assert {field.name for field in fields(kind)} - read - without_effect == set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_config_leaves_out_means_what_it_means_to_transformers(
    kind: type[PretrainedConfig],
) -> None:
    """Files have but the sizes; their class fills in the rest."""
    family = BY_MODEL_TYPE[kind.model_type]
    named = {"architectures": [family.architectures[0]], "model_type": kind.model_type}
    sizes: dict[str, Any] = {"vocab_size": 96, "hidden_size": 1024, "num_hidden_layers": 5}
    sizes |= {"num_attention_heads": 64, "intermediate_size": 64, "ffn_dim": 64}
    sizes |= {"max_position_embeddings": 512, "pad_token_id": 0}
    sizes |= {"n_embd": 1024, "n_layer": 5, "n_head": 64, "n_positions": 512}
    known = {field.name for field in fields(kind)}
    given = {key: value for key, value in sizes.items() if key in known}
    given |= {**NEEDED.get(family.name, {}), **listed(family.name, 5)}
    whole = spec_from_hf({**kind(**given).to_dict(), **named, "dtype": "float32"})
    bare = spec_from_hf({**given, **named, "dtype": "float32"})
    left = {"eos_ids": (), "bos_id": None}  # generation_config.json and the tokenizer say these
    assert replace(bare, **left) == replace(whole, **left)


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES if one.name != "whisper"], ids=lambda one: one.name
)
def test_a_config_without_sizes_has_those_of_transformers(family: Family) -> None:
    """Google's Gemma 3 of 4B says neither its heads nor its vocabulary."""
    named = {"architectures": [family.architectures[0]], "model_type": family.model_types[0]}
    given = {**NEEDED.get(family.name, {}), **named, "dtype": "float32"}
    config = CONFIG_MAPPING[family.model_types[0]]()
    text = getattr(config, "text_config", config)
    if family.name in LISTED:
        given |= listed(family.name, text.num_hidden_layers)
    whole = spec_from_hf({**text.to_dict(), **given})
    left = {"eos_ids": (), "bos_id": None}
    assert replace(spec_from_hf(given), **left) == replace(whole, **left)


def test_layers_that_are_listed_have_a_window_without_the_flag() -> None:
    """As eager and sdpa of Transformers mask them."""
    listed = ["sliding_attention", "full_attention"]
    sizes = {"num_hidden_layers": 2, "sliding_window": 7, "use_sliding_window": False}
    config = SmolLM3Config(**sizes, layer_types=listed).to_dict()
    named = {"architectures": ["SmolLM3ForCausalLM"]}
    assert spec_from_hf({**config, **named}).windows == (7, None)


def test_a_null_size_of_heads_is_that_of_the_hidden_size() -> None:
    """As the classes that accept null have it; left out it is 128."""
    said = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 1}
    config = Ernie4_5Config(**said, head_dim=None)
    given = {**said, "architectures": ["Ernie4_5ForCausalLM"]}
    assert spec_from_hf({**given, "head_dim": None}).head_dim == config.head_dim == 16
    assert spec_from_hf(given).head_dim == Ernie4_5Config(**said).head_dim == 128


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_any_shape_are_read_or_refused_by_key(kind: type[PretrainedConfig]) -> None:
    """Lists and objects are no members of sets, where plain wrong values are not either."""
    config = [config for config in ALL.values() if type(config) is kind][-1].to_dict()
    given = {**config, "architectures": [BY_MODEL_TYPE[kind.model_type].architectures[0]]}
    for key, value in given.items():
        wrong: list[Any] = [[], {}, [[]], [{}]]
        if isinstance(value, list) and value:
            wrong += [[*value[:-1], []], [*value[:-1], {}], value[:-1]]
        for one in wrong:
            with suppress(QuireError):
                spec_from_hf({**given, key: one})
