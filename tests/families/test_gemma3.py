"""Gemma 3: its text in models that also see, its GGUF files, its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

from quire import LLM, SamplingParams
from quire.errors import UnsupportedModel
from quire.weights.hf_config import spec_from_hf
from quire.weights.source import locate
from tests.parity.families import GEMMA3
from tests.weights.tiny import tiny_model, write_gguf

PROMPTS = [[(5 * i + seed) % 90 + 2 for i in range(30)] for seed in range(3)]
EIGHT = {"sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}


def logprobs_of(path: Path) -> list[list[float]]:
    """Of each token of the prompts, as quire computes them in small pieces."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    given: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 4 << 20}
    with LLM(str(path), skip_tokenizer_init=True, max_num_batched_tokens=13, **given) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    made = []
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.prompt_logprobs is not None
        rest = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
        made.append([one[token].logprob for token, one in rest if one is not None])
    return made


@torch.no_grad()
def check(model: Any, path: Path) -> None:
    for prompt, ours in zip(PROMPTS, logprobs_of(path), strict=True):
        ids = torch.tensor([prompt])
        theirs = model(input_ids=ids).logits[0].log_softmax(-1)[:-1]
        expected = theirs.gather(1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(torch.tensor(ours), expected, atol=1e-4)


def randomised(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def test_a_gguf_file_computes_what_transformers_does(tmp_path: Path) -> None:
    model = randomised(tiny_model("gemma3", **EIGHT))
    write_gguf(model, tmp_path / "model.gguf")
    spec = locate(str(tmp_path / "model.gguf")).spec()
    assert spec.windows == (8, 8, 8, 8, 8, None, 8)
    check(model, tmp_path / "model.gguf")


@pytest.mark.parametrize("older", [False, True])
def test_the_text_of_a_model_that_also_sees(older: bool, tmp_path: Path) -> None:
    """Names as they are saved today, and as those on the Hub have them; towers are left out."""
    torch.manual_seed(3)
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config = Gemma3Config(text_config=GEMMA3, vision_config=vision.to_dict())
    model = randomised(Gemma3ForConditionalGeneration(config))
    model.save_pretrained(tmp_path)
    if older:
        state = load_file(tmp_path / "model.safetensors")
        save_file({older_name(name): tensor for name, tensor in state.items()}, tmp_path / "m")
        (tmp_path / "m").rename(tmp_path / "model.safetensors")
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["architectures"] == ["Gemma3ForConditionalGeneration"] and "text_config" in said
    check(model, tmp_path)


def older_name(name: str) -> str:
    inner = name.removeprefix("model.").removeprefix("language_model.")
    of_text = inner.startswith(("layers.", "embed_tokens.", "norm.", "model."))
    return f"language_model.model.{inner.removeprefix('model.')}" if of_text else inner


@pytest.mark.parametrize(("layers", "hidden", "scalar"), [(18, 640, 256), (62, 5376, 5376 // 32)])
def test_what_gguf_does_not_say_is_known(layers: int, hidden: int, scalar: int) -> None:
    from quire.families.fields import Fields
    from quire.families.gemma3 import FAMILY

    assert FAMILY.gguf_words is not None
    config = {"num_hidden_layers": layers, "hidden_size": hidden, "head_dim": 256}
    words = FAMILY.gguf_words(
        Fields({"gemma3.attention.sliding_window": 512}, "a file"),
        {**config, "num_attention_heads": 32 if layers == 62 else 4},
    )
    assert words["query_pre_attn_scalar"] == scalar


CONFIG: dict[str, Any] = {**GEMMA3, "rope_parameters": None, "layer_types": None}
CONFIG["model_type"] = "gemma3_text"


def test_older_configs_say_the_same_in_other_words() -> None:
    """As those on the Hub: a theta for each kind, one scaling, a period."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    older = {**CONFIG, "rope_theta": 5000.0, "rope_local_base_freq": 100.0}
    spec = spec_from_hf({**older, "rope_scaling": scaling, "sliding_window_pattern": 3})
    assert spec == spec_from_hf({**GEMMA3, "model_type": "gemma3_text"})
    plain = spec_from_hf(CONFIG)
    assert plain.windows == (9, 9, 9, 9, 9, None)
    assert [rope.theta for rope, _ in plain.rotations if rope is not None] == [1e4, 1e6]


def test_overrides_of_ropes_by_kind() -> None:
    given = {**GEMMA3, "model_type": "gemma3_text"}
    other = {kind: {"rope_theta": 7.0} for kind in ("full_attention", "sliding_attention")}
    assert spec_from_hf(given, {"rope_parameters": other}).rope.theta == 7.0
    spec = spec_from_hf({**CONFIG, "rope_theta": 9.0}, {"rope_theta": 7.0})
    assert spec.rotations[1][0].theta == 7.0  # type: ignore[union-attr]
    with pytest.raises(UnsupportedModel, match="by kind of layer"):
        spec_from_hf(given, {"rope_theta": 7.0})
    with pytest.raises(UnsupportedModel, match="use_bidirectional_attention"):
        spec_from_hf({**given, "use_bidirectional_attention": True})
