"""Adapters as PEFT writes them, and its arithmetic on a model of Transformers, as a judge."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from quire import LLM, LoRARequest


def random_model(config: PretrainedConfig) -> Any:
    """A model of Transformers in which no bias is 0 and no norm is 1."""
    torch.manual_seed(0)
    oracle = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return oracle.to(torch.float32)


@dataclass
class Peft:
    """One adapter: its tensors by module, and its config."""

    a: dict[str, Tensor]
    b: dict[str, Tensor]
    magnitude: dict[str, Tensor] = field(default_factory=dict)
    embedding: frozenset[str] = frozenset()
    config: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Tensor] = field(default_factory=dict)  # by the names of its file

    def scale(self, module: str) -> float:
        alpha = self.config["lora_alpha"]
        for key, other in self.config.get("alpha_pattern", {}).items():
            if module == key or module.endswith(f".{key}"):
                alpha = other
                break
        rank = len(self.a[module])
        return float(alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank))

    def save(self, path: Path, prefix: str = "base_model.model.") -> Path:
        path.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for module in self.a:
            start, kind = f"{prefix}{module}.", "lora_embedding_"
            if module in self.embedding:
                tensors[f"{start}{kind}A"] = self.a[module]
                tensors[f"{start}{kind}B"] = self.b[module]
                continue
            tensors[f"{start}lora_A.weight"] = self.a[module]
            tensors[f"{start}lora_B.weight"] = self.b[module]
            if module in self.magnitude:
                tensors[f"{start}lora_magnitude_vector"] = self.magnitude[module]
        tensors |= {f"{prefix}{name}": tensor for name, tensor in self.more.items()}
        save_file(
            {n: t.contiguous() for n, t in tensors.items()}, path / "adapter_model.safetensors"
        )
        (path / "adapter_config.json").write_text(json.dumps(self.config))
        return path


def make_peft(
    model: Any, targets: Sequence[str], *, seed: int = 1, rank: int = 4, **config: Any
) -> Peft:
    """Random numbers for every module whose name ends with a target."""
    made = torch.Generator().manual_seed(seed)
    a, b, magnitude, embedding = {}, {}, {}, set()
    ranks: dict[str, int] = config.get("rank_pattern", {})
    for name, module in model.named_modules():
        if not name.endswith(tuple(targets)) or not hasattr(module, "weight"):
            continue
        own = next((r for key, r in ranks.items() if name.endswith(key)), rank)
        rows, columns = module.weight.shape
        if isinstance(module, Conv1D):
            rows, columns = columns, rows
        if isinstance(module, nn.Embedding):
            embedding.add(name)
            rows, columns = columns, rows
        a[name] = torch.randn(own, columns, generator=made) / math.sqrt(columns)
        b[name] = torch.randn(rows, own, generator=made)
        if config.get("use_dora"):
            magnitude[name] = torch.rand(rows, generator=made) + 0.5
    assert a
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "bias": "none", **config}
    return Peft(a, b, magnitude, frozenset(embedding), {"target_modules": list(targets), **given})


@contextmanager
def applied(model: Any, peft: Peft) -> Iterator[None]:
    """The model with the adapter beside its modules, as PEFT computes it without merging."""
    handles = []
    for name, module in model.named_modules():
        if name in peft.a:
            handles.append(module.register_forward_hook(_hook(peft, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(peft: Peft, name: str) -> Any:
    a, b, scale = peft.a[name], peft.b[name], peft.scale(name)

    def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
        if name in peft.embedding:  # one that scales its rows scales what is added to them
            own = getattr(module, "embed_scale", 1.0)
            return output + F.embedding(inputs[0], a.T) @ b.T * scale * own
        added = F.linear(F.linear(inputs[0], a), b) * scale
        if name not in peft.magnitude:
            return output + added
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        length = (weight + scale * b @ a).norm(dim=1)
        bias = 0 if module.bias is None else module.bias
        return peft.magnitude[name] / length * (output - bias + added) + bias

    return hook


@contextmanager
def exchanged(model: Any, own: dict[str, Tensor]) -> Iterator[None]:
    """The model with these in place of its parameters of those names, of which none is tied."""
    before = {}
    for name, tensor in own.items():
        module, _, kind = name.rpartition(".")
        part = model.get_submodule(module)
        before[name] = part, kind, getattr(part, kind)
        setattr(part, kind, nn.Parameter(tensor))
    try:
        yield
    finally:
        for part, kind, parameter in before.values():
            setattr(part, kind, parameter)


@torch.no_grad()
def merged(model: Any, peft: Peft) -> None:
    """Write the adapter into the model's weights."""
    for name, module in model.named_modules():
        if name in peft.a:
            change = peft.b[name] @ peft.a[name] * peft.scale(name)
            module.weight += change.T if name in peft.embedding else change


@torch.no_grad()
def logprobs(model: Any, text: Sequence[int]) -> Tensor:
    """After each token of a text. [len(text), V]"""
    found: Tensor = model(torch.tensor([list(text)])).logits[0].log_softmax(-1)
    return found


def open_llm(directory: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8}
    given |= {"dtype": "float32", "skip_tokenizer_init": True, "max_num_batched_tokens": 37}
    return LLM(str(directory), **{**given, "enable_lora": True, "max_loras": 3, **options})


def named(path: Path, number: int = 1) -> LoRARequest:
    return LoRARequest(path.name, number, str(path))
