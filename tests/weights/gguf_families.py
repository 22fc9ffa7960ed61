"""Tiny models as GGUF files, as llama.cpp's converter writes them: names by the `gguf` package,
rows and metadata as each architecture has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import PretrainedConfig

from tests.weights.tiny import rearranged

gguf = pytest.importorskip("gguf")

HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
PERMUTED = (
    *("arcee", "llama", "granite", "granitemoe", "granitehybrid"),
    *("smollm3", "mistral3", "olmo"),
)
# One of several tensors that a file has on top of each other.
_OF_A_STACK = re.compile(r"(.*(?:\.experts|altup_(?:unembed_)?projections))\.(\d+)\.(.+)")
Stored = Iterator[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Converter:
    """One model on its way."""

    arch: str
    config: Any

    def tensors(self, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """By the names of GGUF, experts and products of streams on top of each other."""
        kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == self.arch)
        names = gguf.get_tensor_name_map(kind, self.config.num_hidden_layers)
        made: dict[str, np.ndarray] = {}
        experts: dict[str, dict[int, np.ndarray]] = {}
        for name, values in self._changed(stored):
            if numbered := _OF_A_STACK.fullmatch(name):
                head, number, inner = numbered.groups()
                experts.setdefault(f"{head}.{inner}", {})[int(number)] = values
                continue
            made[_named(names, name)] = values
        for name, found in experts.items():
            stack = np.stack([found[i] for i in range(len(found))])
            made[_named(names, name)] = stack
        return made

    def _changed(self, stored: dict[str, np.ndarray]) -> Stored:
        for name, values in stored.items():
            if name in ("lm_head.weight", "embed_out.weight") and self.config.tie_word_embeddings:
                continue
            yield from self._one(name, values)

    def _one(self, name: str, values: np.ndarray) -> Stored:
        config, heads = self.config, getattr(self.config, "num_attention_heads", 0)
        if self.arch in PERMUTED and name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else config.num_key_value_heads
            values = rearranged(values, count)
        if self.arch in PERMUTED and name.endswith(("q_proj.bias", "k_proj.bias")):
            count = heads if "q_proj" in name else config.num_key_value_heads
            values = rearranged(values, count)
        if self.arch in ("gemma3n", "gemma4"):
            yield from self._of_gemma4(name, values)
            return
        if (self.arch.startswith("gemma") or self.arch == "nemotron") and name.endswith(
            "norm.weight"
        ):
            values = values + 1
        if self.arch in HYBRIDS:
            yield from self._of_hybrid(name, values)
            return
        if ".mamba." in name or ".mixer." in name:
            values = self._of_mamba(name, values)
            name = name.replace(".dt_bias", ".dt_proj.bias")
        if ".mixer.experts." in name:
            name = name.replace(".mixer.", ".mlp.").replace("backbone.", "model.")
        if self.arch == "lfm2moe" and ".experts." in name:
            name = name.removeprefix("model.")
        if ".conv.conv." in name and name.endswith("weight"):
            values = values[:, 0]
        if self.arch == "gpt2" and values.ndim == 2 and ".c_" in name:
            values = values.T
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        if name.endswith("kv_b_proj.weight"):
            by_head = values.reshape(heads, -1, values.shape[-1])
            keys, values = np.split(by_head, [config.qk_nope_head_dim], axis=1)
            yield name.replace("kv_b", "k_b"), keys.swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), values
            return
        if ".query_key_value." in name:
            values = self._by_kind(values)
        if "shared_mlp.input_linear" in name:
            inner = "mlp.shared_expert" if self._has_experts else "mlp"
            for kind, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{inner}.{kind}_proj"), half
            return
        if "shared_mlp.output_linear" in name and not self._has_experts:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        if "input_linear" in name:
            gate, up = np.split(values, 2, axis=1)
            base = name.removesuffix("input_linear.weight")
            yield f"{base}experts.gate.weight", gate
            yield f"{base}experts.up.weight", up
            return
        if self.arch == "llama4":
            yield from self._of_llama4(name, values)
            return
        stacks = (".experts.gate_up_proj", ".experts.down_proj", ".experts.mlp.")
        if any(one in name for one in stacks):
            yield from self._of_oss(name, values)
            return
        yield name, values

    @property
    def _has_experts(self) -> bool:
        return bool(getattr(self.config, "num_local_experts", 0))

    def _by_kind(self, values: np.ndarray) -> np.ndarray:
        """Queries, keys, values, from groups of a KV head each."""
        heads = self.config.num_attention_heads
        kv_heads = getattr(self.config, "num_kv_heads", heads)
        if self.arch == "falcon" and not self.config.new_decoder_architecture:
            kv_heads = 1
        group, size = heads // kv_heads, self.config.hidden_size // heads
        grouped = values.reshape(kv_heads, group + 2, size, *values.shape[1:])
        parts = (grouped[:, :group], grouped[:, group], grouped[:, group + 1])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    def _of_hybrid(self, name: str, values: np.ndarray) -> Stored:
        config = self.config
        keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
        qk = 2 * keys * config.linear_key_head_dim
        if "in_proj_qkvz" in name:
            by_head = values.reshape(keys, -1, values.shape[1])
            v = heads // keys * config.linear_value_head_dim
            ends = np.cumsum([qk // keys // 2, qk // keys // 2, v])
            parts = [one.reshape(-1, values.shape[1]) for one in np.split(by_head, ends, axis=1)]
            yield name.replace("qkvz", "qkv"), np.concatenate(parts[:3])
            yield name.replace("qkvz", "z"), parts[3]
            return
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        values = -np.exp(values) if name.endswith("A_log") else values
        values = values[:, 0] if "conv1d" in name else values
        if "linear_attn." in name and self.arch != "qwen3next" and ".norm." not in name:
            if "in_proj_qkv" in name or "conv1d" in name:
                values = np.concatenate([values[:qk], self._in_turn(values[qk:])])
            elif "out_proj" in name:
                values = self._in_turn(values.T).T
            else:
                values = self._in_turn(values)
        yield name.replace(".dt_bias", ".dt_proj.bias"), values

    def _of_gemma4(self, name: str, values: np.ndarray) -> Stored:
        # Once: only the layers without a window read them.
        if self.arch == "gemma4" and name == "model.norm.weight":
            pairs = self.config.per_layer_config[-1].head_dim // 2  # the last has no window
            rope = self.config.rope_parameters["full_attention"]
            turning = int(pairs * rope["partial_rotary_factor"])
            yield "rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), "f")
        bare = (".layer_scalar", ".correct_output_scale")
        if name.endswith((*bare, ".experts.gate_up_proj", ".experts.down_proj")):
            name += ".weight"
        if name.endswith(".router.scale"):
            name = name.replace(".router.scale", ".router.proj.scale")
        yield name, values

    def _of_mamba(self, name: str, values: np.ndarray) -> np.ndarray:
        if name.endswith("A_log"):
            values = -np.exp(values)
        if name.endswith((".A_log", ".D")):
            return values[:, None]
        if name.endswith("conv1d.weight"):
            return values[:, 0]
        groups = getattr(self.config, "mamba_n_groups", 0) or getattr(self.config, "n_groups", 0)
        return values.reshape(groups, -1) if name.endswith(".norm.weight") else values

    def _in_turn(self, rows: np.ndarray) -> np.ndarray:
        """Heads of v, the first of every key head before the second of any."""
        keys, heads = self.config.linear_num_key_heads, self.config.linear_num_value_heads
        grouped = rows.reshape(keys, heads // keys, len(rows) // heads, *rows.shape[1:])
        return grouped.swapaxes(0, 1).reshape(rows.shape)

    def _of_llama4(self, name: str, values: np.ndarray) -> Stored:
        if ".experts." not in name:
            yield name, values
            return
        values, base = values.swapaxes(1, 2), name.replace("gate_up_proj", "{}_proj")
        kinds = ("gate", "up") if "gate_up" in name else ("down",)
        for kind, part in zip(kinds, np.split(values, len(kinds), axis=1), strict=True):
            yield f"{base.format(kind)}.weight", part

    def _of_oss(self, name: str, values: np.ndarray) -> Stored:
        if self.arch == "dbrx":
            values = values.reshape(self.config.ffn_config.moe_num_experts, -1, values.shape[1])
            yield name, values.swapaxes(1, 2) if name.endswith("w2") else values
            return
        kind = "bias" if name.endswith("_bias") else "weight"
        base = name.removesuffix("_bias")
        if kind == "weight":
            values = values.swapaxes(1, 2)
        if base.endswith("down_proj"):
            yield f"{base}.{kind}", values
            return
        base = base.removesuffix("gate_up_proj")
        yield f"{base}gate_proj.{kind}", values[:, ::2]
        yield f"{base}up_proj.{kind}", values[:, 1::2]


def _named(names: Any, name: str) -> str:
    if name.endswith("e_score_correction_bias"):
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if name.endswith(".expert_bias"):
        name += ".bias"
    for bare in (".sinks", ".mlp.w1", ".mlp.v1", ".mlp.w2"):
        if name.endswith(bare):
            name += ".weight"
    if name == "rope_freqs.weight":
        return name
    if name.endswith(".router.per_expert_scale"):
        return f"blk.{name.split('.')[2]}.ffn_down_exps.scale"
    found = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
    if found is None and ".block_sparse_moe.experts." in name:  # as the converter writes them
        layer = name.split(".")[2]
        kinds = {"gate": "ffn_gate_exps", "up": "ffn_up_exps"}
        found = f"blk.{layer}.{kinds[name.split('.')[-2]]}.weight"
    assert found is not None, name
    return str(found)


def write(
    directory: Path,
    path: Path,
    config: PretrainedConfig,
    arch: str,
    said: dict[str, Any],
    *,
    packed: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, np.ndarray] = MappingProxyType({}),
    fused: bool = False,
    alone: bool = False,
) -> None:
    """The model of a directory as a GGUF file with this metadata beside the usual ones; tensors
    with one of the names `packed` in its format, and `more`; gates and ups of experts `fused`, or
    `alone`."""
    writer = gguf.GGUFWriter(path, arch)
    usual = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", 0),
        "embedding_length": config.hidden_size,
        "attention.head_count": getattr(config, "num_attention_heads", 0),
    }
    for key, value in {**usual, **said}.items():
        key = f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    stored = load_file(directory / "model.safetensors")
    tensors = {**Converter(arch, config).tensors(stored), **more}
    for gate in [name for name in tensors if fused and "ffn_gate_exps" in name]:
        pair = [tensors.pop(name) for name in (gate, gate.replace("_gate_", "_up_"))]
        tensors[gate.replace("_gate_", "_gate_up_")] = np.concatenate(pair, axis=1)
    for stack in [name for name in tensors if alone and "_exps." in name]:
        for i, expert in enumerate(tensors.pop(stack)):
            tensors[stack.replace("_exps.", f".{i}.")] = expert
    for name, values in tensors.items():
        values = np.ascontiguousarray(values)
        kinds = [kind for part, kind in packed.items() if f"_{part}." in name]
        if kinds:
            kind = gguf.GGMLQuantizationType[kinds[0]]
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
