"""Models whose layers differ in heads, keys and parts: what holds for all others holds for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.cache.groups import blocks_held
from quire.errors import NotSupported, UnsupportedModel
from quire.executor.memory import groups_of, windows_of
from quire.options import DeviceFacts, WeightFacts, parse_options, resolve
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.parity.families import Pair
from tests.parity.families_by_kind import BY_KIND
from tests.parity.more_families import random_model
from tests.parity.test_families import check_directory
from tests.parity.test_states import check_exchange, errors_of
from tests.parity.test_windows import OUTPUT, PROMPT, asked, check
from tests.specs import small_config

ALL_PARTS = "gemma4, everything"


@pytest.mark.parametrize("name", [ALL_PARTS, "gemma4, values are keys", "gemma3n"])
def test_a_pool_with_hardly_room_for_one(name: str) -> None:
    """Blocks behind windows are given back, and rows are preempted and come back."""
    oracle = random_model(BY_KIND[name])
    with TemporaryDirectory() as folder:
        oracle.save_pretrained(folder)
        spec = spec_from_hf(read_config(Path(folder)))
        weights = load_weights(locate(folder), spec, dtype=torch.float32, device="cpu")
    config = small_config(max_num_batched_tokens=24, depth=2, max_repeat=4)
    windows = windows_of(groups_of(config, spec))
    assert {9, None} == set(windows)
    num_blocks = blocks_held(windows, config.block_size, PROMPT + 4 + OUTPUT) + 12
    check(Pair(oracle, spec, weights), asked(), replace(config, num_blocks=num_blocks))


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("name", BY_KIND)
def test_fewer_bits_stay_close(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """In the mean: heads whose products have no factor attend to single tokens here, and one choice
    that a rounding changes is far off."""
    errors = errors_of(random_model(BY_KIND[name]), tmp_path, **options)
    assert sum(errors) / len(errors) <= 0.25


@pytest.mark.parametrize("name", [ALL_PARTS, "gemma3n"])
def test_weights_are_exchanged_in_place(name: str, tmp_path: Path) -> None:
    """Tables for single layers, factors of experts and of the stream, each where its name says."""
    first, second = (random_model(BY_KIND[name]) for _ in range(2))
    check_exchange(first, second, tmp_path)


@pytest.mark.parametrize("name", ["gemma4, embeddings of layers, keys of others, wider", "gemma3n"])
def test_keys_that_are_stored_where_none_are_made_are_left_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Published files have them for every layer, and its class does not read them either."""
    random_model(BY_KIND[name]).save_pretrained(tmp_path)
    stored = load_file(file := tmp_path / "model.safetensors")
    attention = "model.layers.5.self_attn"
    names = (f"{attention}.{one}.weight" for one in ("k_proj", "v_proj", "k_norm"))
    more = {one: torch.ones(4, 4) for one in names}
    save_file({**stored, **more}, file, metadata={"format": "pt"})
    spec = spec_from_hf(read_config(tmp_path))
    load_weights(locate(str(tmp_path)), spec, dtype=torch.float32, device="cpu")
    assert "not used" not in capsys.readouterr().err
    save_file({**stored, f"{attention}.r_proj.weight": torch.ones(4, 4)}, file)
    with pytest.raises(UnsupportedModel, match="no part for 'model.layers.5.self_attn.r_proj"):
        load_weights(locate(str(tmp_path)), spec, dtype=torch.float32, device="cpu")


def test_the_text_of_a_model_that_sees_and_hears_is_read_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is published: the text in a part of its own, beside towers, with keys that no layer
    reads."""
    oracle = random_model(BY_KIND["gemma3n"])
    oracle.save_pretrained(tmp_path)
    stored = load_file(file := tmp_path / "model.safetensors")
    renamed = {f"model.language_model.{k.removeprefix('model.')}": v for k, v in stored.items()}
    towers = ("vision_tower.timm_model.conv", "audio_tower.conv", "embed_vision.embedding")
    renamed |= {f"model.{one}.weight": torch.ones(4) for one in towers}
    renamed["model.language_model.layers.5.self_attn.k_proj.weight"] = torch.ones(4, 4)
    save_file(renamed, file, metadata={"format": "pt"})
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "text_config": BY_KIND["gemma3n"].to_dict(),
        "vision_config": {"model_type": "gemma3n_vision"},
        "audio_config": {"model_type": "gemma3n_audio"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_directory(tmp_path, oracle, "gemma3n", count=3, most=8)
    assert "not used" not in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in BY_KIND if "three streams" not in name])
def test_keys_in_fp8_are_refused_by_name(name: str) -> None:
    config = BY_KIND[name].to_dict()
    spec = spec_from_hf({**config, "architectures": None})
    facts = DeviceFacts("cuda", 1 << 34, 1 << 33, 2, ("bfloat16",))
    with pytest.raises(NotSupported, match="other heads in some layers, or layers that read"):
        resolve(parse_options({"kv_cache_dtype": "fp8"}), spec, facts, WeightFacts())
