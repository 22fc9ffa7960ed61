"""Quantised checkpoints of tiny models by quantised_writers.py, and the weights that they mean."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.weights.quantised_writers import (
    Tensors,
    Writer,
    awq,
    bnb_int8,
    fp4,
    fp8,
    gptq,
    in_bytes,
    nf4,
    one_zero,
    packed,
    ternary,
)


@dataclass(frozen=True)
class Case:
    """A layout: what its config says, and who writes its weights."""

    config: dict[str, Any]
    write: Writer
    alone: str | None = None  # the file that says it, if that is not config.json
    skipped: tuple[str, ...] = field(default=("lm_head",))


def _compressed(format_: str, **weights: Any) -> dict[str, Any]:
    numbers = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": numbers}},
        "ignore": ["lm_head", "re:.*self_attn.v_proj$"],
    }


def _gptq(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": True, **more}


AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NO_V = ("lm_head", "v_proj")
CASES = {
    "awq": Case(AWQ, awq(32)),
    "awq alone": Case(
        {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"},
        awq(64),
        "quant_config.json",
    ),
    "gptq": Case(_gptq(4, 32), gptq(32, 4, sym=True)),
    "gptq alone": Case(
        {"bits": 4, "group_size": 32, "sym": False, "desc_act": False},
        gptq(32, 4, sym=False),
        "quantize_config.json",
    ),
    "gptq v2": Case(
        _gptq(4, 64, sym=False, checkpoint_format="gptq_v2"), gptq(64, 4, sym=False, v2=True)
    ),
    "gptq desc_act": Case(
        _gptq(4, 32, sym=False, desc_act=True), gptq(32, 4, sym=False, act_order=True)
    ),
    "gptq 8 bits": Case(_gptq(8, 32, sym=False), gptq(32, 8, sym=False)),
    "gptq 2 bits": Case(_gptq(2, 32, sym=False), gptq(32, 2, sym=False)),
    "gptq 3 bits": Case(_gptq(3, 32), gptq(32, 3, sym=True)),
    "gptq 3 bits, zeros less one": Case(
        _gptq(3, 32, sym=False, desc_act=True), gptq(32, 3, sym=False, act_order=True)
    ),
    "gptq 8 bits by row": Case(_gptq(8, 64), gptq(64, 8, sym=True)),
    "auto-round": Case(
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
        | {"packing_format": "auto_round:auto_gptq", "autoround_version": "0.5.1"}
        | {"extra_config": {f"model.layers.{i}.self_attn.v_proj": {"bits": 16} for i in range(8)}},
        gptq(32, 4, sym=False),
        skipped=NO_V,
    ),
    "auto-round, zeros as they are": Case(
        {"quant_method": "intel/auto-round", "bits": 8, "group_size": 32, "sym": False}
        | {"packing_format": "auto_round:gptqmodel"}
        | {"extra_config": {".*q_proj": {"bits": 8, "group_size": 32}}},
        gptq(32, 8, sym=False, v2=True),
    ),
    "auto-round as awq": Case(
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
        | {"packing_format": "auto_round:auto_awq"},
        awq(32),
    ),
    "packed": Case(_compressed("pack-quantized", group_size=32), packed(32), skipped=NO_V),
    "packed by row": Case(
        _compressed("pack-quantized", strategy="channel"), packed(0), skipped=NO_V
    ),
    "packed with zeros": Case(
        _compressed("pack-quantized", group_size=32, symmetric=False),
        packed(32, symmetric=False),
        skipped=NO_V,
    ),
    "packed in order": Case(
        _compressed("pack-quantized", group_size=32, actorder="group"),
        packed(32, act_order=True),
        skipped=NO_V,
    ),
    "packed 8 bits": Case(
        _compressed("pack-quantized", group_size=32, num_bits=8), packed(32, 8), skipped=NO_V
    ),
    "packed 3 bits with zeros": Case(
        _compressed("pack-quantized", group_size=32, num_bits=3, symmetric=False),
        packed(32, 3, symmetric=False),
        skipped=NO_V,
    ),
    "packed, one zero for all": Case(
        _compressed("pack-quantized", strategy="tensor", symmetric=False), one_zero, skipped=NO_V
    ),
    "packed 5 bits by row": Case(
        _compressed("pack-quantized", group_size=-1, num_bits=5, strategy=None),
        packed(0, 5),
        skipped=NO_V,
    ),
    "nvfp4": Case(
        _compressed("nvfp4-pack-quantized", strategy="tensor_group", group_size=16, type="float"),
        fp4(16),
        skipped=NO_V,
    ),
    "mxfp4 packed": Case(
        _compressed("mxfp4-pack-quantized", group_size=32, type="float"), fp4(32), skipped=NO_V
    ),
    "mxfp8": Case(
        _compressed("mxfp8-quantized", group_size=32, num_bits=8, type="float"),
        fp8("group", powers=True),
        skipped=NO_V,
    ),
    "4 bits in bytes": Case(
        _compressed("naive-quantized", group_size=32, symmetric=False),
        in_bytes(4, 32, symmetric=False),
        skipped=NO_V,
    ),
    "the closest target": Case(
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}},
                "group_1": {
                    "targets": ["re:.*proj$"],
                    "weights": {"num_bits": 4, "type": "int", "group_size": 32},
                },
                "group_2": {"targets": ["LlamaAttention"], "input_activations": {"num_bits": 8}},
            },
        },
        packed(32),
    ),
    "int8": Case(
        _compressed("int-quantized", strategy="channel", num_bits=8), in_bytes(), skipped=NO_V
    ),
    "int8 with zeros": Case(
        _compressed("int-quantized", strategy="channel", num_bits=8, symmetric=False),
        in_bytes(symmetric=False),
        skipped=NO_V,
    ),
    "compressed fp8": Case(
        _compressed("float-quantized", strategy="channel", num_bits=8, type="float"),
        fp8("row"),
        skipped=NO_V,
    ),
    "fp8 by tensor": Case({**FP8, "ignored_layers": ["lm_head"]}, fp8("tensor")),
    "fp8 by tensor, with scales of activations": Case(
        {**FP8, "activation_scheme": "static", "weight_block_size": None},
        fp8("tensor", "weight_scale_inv"),
    ),
    "fp8 by row": Case({"quant_method": "fbgemm_fp8"}, fp8("row")),
    "fp8 blocks": Case(
        {**FP8, "weight_block_size": [32, 32], "fmt": "e4m3"}, fp8("block", "weight_scale_inv")
    ),
    "fp8 blocks, powers": Case(
        {**FP8, "weight_block_size": [32, 32]}, fp8("block", "weight_scale_inv", powers=True)
    ),
    "modelopt alone": Case(
        {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        fp8("tensor"),
        "hf_quant_config.json",
    ),
    "modelopt nvfp4": Case(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        fp4(16, modelopt=True),
    ),
    "modelopt mixed": Case(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.{i}": {"quant_algo": "NVFP4", "group_size": 16} for i in range(8)
            }
            | {"lm_head": {"quant_algo": "FP8"}},
        },
        fp4(16, modelopt=True),
    ),
    "bitsandbytes int8": Case({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
    "bitnet": Case({"quant_method": "bitnet"}, ternary(divides=True)),
    "bitnet, scales multiply": Case(
        {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
            "modules_to_not_convert": ["lm_head", "v_proj"],
        },
        ternary(divides=False),
        skipped=NO_V,
    ),
    "nf4": Case(BNB, nf4(nested=False)),
    "nf4 nested": Case({**BNB, "bnb_4bit_use_double_quant": True}, nf4(nested=True)),
}


def write_quantised(model: PreTrainedModel, directory: Path, case: Case) -> Tensors:
    """Write a model's checkpoint with its Linears quantised; returns the weights that it means."""
    model.save_pretrained(directory)
    # Copies: what is loaded lies in the file, which older releases of safetensors write in place.
    state = {n: t.clone() for n, t in load_file(directory / "model.safetensors").items()}
    tensors: Tensors = {}
    for name, tensor in state.items():
        module = name.removesuffix(".weight")
        inside = "layers." in name and module.endswith(("_proj", "_with_mqa"))
        if not inside or name == module or module.endswith(case.skipped):
            tensors[name] = tensor
            continue
        parts, state[name] = case.write(tensor.float())
        tensors |= {f"{module}.{role}": part.contiguous() for role, part in parts.items()}
    save_file(tensors, directory / "model.safetensors")
    where = directory / "config.json"
    if case.alone is not None:
        (directory / case.alone).write_text(json.dumps(case.config))
    else:
        said = json.loads(where.read_text())
        where.write_text(json.dumps({**said, "quantization_config": case.config}))
    return state


def meant_model(model: PreTrainedModel, directory: Path, state: Tensors) -> PreTrainedModel:
    """The model with these weights, by way of files, which name them otherwise than it does."""
    model.save_pretrained(directory)
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(directory, dtype=torch.float32).eval()
