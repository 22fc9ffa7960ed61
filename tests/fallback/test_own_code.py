"""Models that a directory brings the code of, in several files, as older repositories have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from quire import LLM
from tests.fallback.judging import OPTIONS, way_of, wrong

CONFIG = """
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own_code"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "depth"}

    def __init__(self, vocab_size=96, width=32, depth=2, reach=99, **others):
        self.vocab_size, self.width, self.depth, self.reach = vocab_size, width, depth, reach
        self.max_position_embeddings = 128
        super().__init__(**others)
"""
PARTS = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
"""
# Attention, mask and all; its body returns a tuple; a mask that it is given is not looked at.
MODEL = """
import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_own import OwnConfig
from .parts import Norm

class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.reach = index, config.reach
        self.norm = Norm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x, cache):
        batch, new, width = x.shape
        split = (batch, new, 4, width // 4)
        q, k, v = (p.view(split).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        behind = torch.arange(k.shape[2] - new, k.shape[2])[:, None] - torch.arange(k.shape[2])
        scores = q @ k.transpose(2, 3) / 2 - 0.1 * behind
        scores = scores.masked_fill((behind < 0) | (behind >= self.reach), float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))

class OwnModel(PreTrainedModel):
    config_class, base_model_prefix = OwnConfig, "core"

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.depth)])
        self.norm = Norm(config.width)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, past_key_values)
        return self.norm(x), past_key_values

class OwnForCausalLM(PreTrainedModel, GenerationMixin):
    config_class, base_model_prefix = OwnConfig, "core"

    def __init__(self, config):
        super().__init__(config)
        self.core = OwnModel(config)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None,
                past_key_values=None, use_cache=None, return_dict=None):
        hidden, cache = self.core(input_ids, attention_mask, past_key_values, use_cache)
        return CausalLMOutputWithPast(logits=2 * self.head(hidden), past_key_values=cache)
"""
CLASSES = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
}


def written(directory: Path, reach: int) -> str:
    for name, code in (("configuration_own", CONFIG), ("parts", PARTS), ("modeling_own", MODEL)):
        (directory / f"{name}.py").write_text(code)
    config = {"model_type": "own_code", "architectures": ["OwnForCausalLM"], "auto_map": CLASSES}
    (directory / "config.json").write_text(json.dumps({**config, "reach": reach}))
    made = AutoConfig.from_pretrained(directory, trust_remote_code=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made, trust_remote_code=True)
    tensors = {name: one + 0.2 * torch.randn_like(one) for name, one in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return str(directory)


# A reach of 5 is shorter than what texts of a trial are filled up by.
@pytest.mark.parametrize("reach", [99, 5, 2])
def test_its_texts_are_those_of_its_own_code(reach: int, tmp_path: Path) -> None:
    path = written(tmp_path, reach)
    oracle = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, dtype="float32")
    with LLM(path, trust_remote_code=True, **OPTIONS) as llm:
        assert way_of(llm) == "fallback, one by one"
        assert wrong(llm, oracle.eval()) == ""
