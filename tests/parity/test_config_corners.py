"""Configs that say something twice, or in an unusual place: as Transformers loads the directory."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.parity.families import LLAMA3, SIZES, YARN, make_pair
from tests.parity.test_families import check_greedy
from tests.weights.tiny import tiny_model, write_gguf

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
NO_THETA = {key: value for key, value in YARN.items() if key != "rope_theta"}
SOME_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
# A family, and what its config.json says besides.
CORNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn beside default parameters": (
        "llama",
        {"rope_parameters": DEFAULT, "rope_scaling": NO_THETA},
    ),
    "llama3 with its length outside": (
        "llama3 rope",
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 16},
    ),
    "yarn by mscale": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.4}},
    ),
    "longrope, short": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 8 for i in range(8)],
                "long_factor": [2.0 + i for i in range(8)],
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral with kinds of layers": (
        "mistral, window 9",
        {"layer_types": SOME_LAYERS, "sliding_window": 9},
    ),
    "ministral by its type alone": (
        "mistral, window 9",
        {"model_type": "ministral", "architectures": None, "layer_types": SOME_LAYERS},
    ),
    "qwen2 with kinds of layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": SOME_LAYERS},
    ),
    "another head beside tied embeddings": (
        "llama untied, every bias",
        {"tie_word_embeddings": True},
    ),
    "the same head beside tied embeddings": ("llama", {}),
}


def agrees(model: Path, oracle: Any, name: str, shortest: int = 1, **options: Any) -> None:
    rng = random.Random(name)
    prompts = [[rng.randrange(96) for _ in range(rng.randint(shortest, 60))] for _ in range(6)]
    check_greedy(model, oracle, prompts, 16, **options)


@pytest.mark.parametrize("name", CORNERS)
def test_a_directory_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    base, said = CORNERS[name]
    make_pair(base).oracle.save_pretrained(tmp_path)
    config = {**json.loads((tmp_path / "config.json").read_text()), **said}
    if "rope_parameters" in said:
        config.pop("rope_theta", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    if name.startswith("the same head"):
        stored = load_file(tmp_path / "model.safetensors")
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
        save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    agrees(tmp_path, oracle.to(torch.float32), name)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_yarn_of_a_gguf_file_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, rope_parameters=YARN, initializer_range=0.25)
    metadata: dict[str, int | float | str] = {
        "{arch}.rope.scaling.type": "yarn",
        "{arch}.rope.scaling.factor": YARN["factor"],
        "{arch}.rope.scaling.original_context_length": YARN["original_max_position_embeddings"],
    }
    path = write_gguf(model, tmp_path / "model.gguf", metadata=metadata)
    assert SIZES["vocab_size"] == model.config.vocab_size
    agrees(path, model, family)


def test_partial_longrope_of_a_gguf_file_is_that_of_transformers(tmp_path: Path) -> None:
    short, long = [1.0 + i / 8 for i in range(6)], [2.0 + i for i in range(6)]
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": short,
        "long_factor": long,
    }
    sizes = {"original_max_position_embeddings": 128, "pad_token_id": 0}
    model = tiny_model("phi3", rope_parameters=rope, initializer_range=0.25, **sizes)
    metadata: dict[str, int | float | str] = {
        "{arch}.rope.dimension_count": 12,
        "{arch}.rope.scaling.original_context_length": 128,
        "{arch}.rope.scaling.attn_factor": (1 + math.log(2) / math.log(128)) ** 0.5,
        "{arch}.attention.sliding_window": 0,
    }
    factors = {
        f"rope_factors_{name}.weight": np.array(values, np.float32)
        for name, values in (("short", short), ("long", long))
    }
    path = write_gguf(model, tmp_path / "model.gguf", metadata=metadata, tensors=factors)
    agrees(path, model, "phi3")


def test_longrope_beyond_its_original_length_is_that_of_transformers(tmp_path: Path) -> None:
    """Whoever asks for longer texts gets the long factors, for whole texts: also one that becomes
    long while it is written, as in one plain call over all of it."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    sizes = {"original_max_position_embeddings": 32, "pad_token_id": 0}
    model = tiny_model("phi3", rope_parameters=rope, initializer_range=0.25, **sizes)
    model.save_pretrained(tmp_path)
    for name in ("first", "second", "third"):
        agrees(tmp_path, model, name, shortest=20, max_model_len=80)
