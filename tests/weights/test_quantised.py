"""Quantised checkpoints are read as their layouts say, bit by bit; others are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.errors import CorruptModel, ModelError, UnsupportedModel
from quire.families.fields import Fields
from quire.options.checks import CHECKPOINTS
from quire.weights.checkpoint import stored_tensors
from quire.weights.load import load_weights
from quire.weights.quantised.config import METHODS, from_fields
from quire.weights.quantised.stored import stored_matrix
from quire.weights.quantised.unpack import read_matrix
from quire.weights.source import locate
from quire.weights.within import Within
from tests.weights.quantised_files import AWQ, BNB, CASES, FP8, write_quantised
from tests.weights.test_load import as_quire_names_them
from tests.weights.tiny import tiny_model


def read(path: Path) -> dict[str, torch.Tensor]:
    files = locate(str(path))
    return load_weights(files, files.spec(), dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("name", CASES)
def test_weights_are_what_the_layout_means(name: str, tmp_path: Path) -> None:
    state = write_quantised(tiny_model("llama"), tmp_path, CASES[name])
    found = read(tmp_path)
    expected = as_quire_names_them(state, locate(str(tmp_path)).spec())
    assert set(found) == set(expected)
    for weight, tensor in expected.items():
        assert torch.equal(found[weight], tensor), weight


def test_an_option_has_a_name_for_every_layout() -> None:
    assert {*METHODS, "gguf"} == set(CHECKPOINTS)


PACKED = CASES["packed"].config
BITNET = CASES["bitnet"].config
GPTQ, ROUND = CASES["gptq"].config, CASES["auto-round"].config


def packed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **weights}}
    return {**PACKED, "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "aqlm"}, "quant_method 'aqlm'"),
        ({**BITNET, "quantization_mode": "online"}, "quantization_mode 'online': weights are roun"),
        ({**BITNET, "use_rms_norm": True}, "use_rms_norm 'True'"),
        ({**BITNET, "linear_class": "linear"}, "linear_class 'linear'"),
        ({"bits": 4}, "quant_method 'None'"),
        ("awq", "must be an object"),
        ({**AWQ, "version": "gemv"}, "version 'gemv'"),
        ({**AWQ, "format": "gemv_fast"}, "format 'gemv_fast'"),
        ({**AWQ, "bits": 3}, "bits '3'"),
        ({**AWQ, "zero_point": False}, "zero_point 'False'"),
        ({**GPTQ, "bits": 5}, "bits '5'"),
        ({**ROUND, "packing_format": "auto_round:llm_compressor"}, "packing_format 'auto_round:ll"),
        ({**ROUND, "data_type": "mx_fp"}, "data_type 'mx_fp'"),
        ({**ROUND, "extra_config": {"lm_head": 4}}, "extra_config"),
        ({**ROUND, "extra_config": {"lm_head": {"bits": 6}}}, "bits '6'"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({**GPTQ, "format": "gptq_p"}, "format 'gptq_p'"),
        ({**GPTQ, "rotation": "hadamard"}, "rotation 'hadamard'"),
        ({**GPTQ, "dynamic": {"+:.*q_proj": {"bits": 6}}}, "dynamic: bits '6'"),
        ({**GPTQ, "dynamic": {"-:(a+)+$": {}}}, "might take years"),
        ({**PACKED, "format": "marlin-24"}, "format 'marlin-24'"),
        ({**PACKED, "format": "mixed-precision"}, "format 'mixed-precision'"),
        ({**PACKED, "format": "nvfp4-pack-quantized"}, "has floats of 4 bits in groups of 16"),
        ({**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({**PACKED, "config_groups": {}}, "config_groups"),
        (packed(num_bits=9), "num_bits '9'"),
        (packed(num_bits=8, type="float"), "of floats those of 8 bits"),
        (packed(strategy="token"), "strategy 'token'"),
        ({**FP8, "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ'"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 32}, "group_size"),
        ({**BNB, "bnb_4bit_quant_storage": "bfloat16"}, "quant_storage 'bfloat16'"),
        ({**AWQ, "modules_to_not_convert": ["re:(.*)*x"]}, "might take years"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config: Any, said: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    where = tmp_path / "config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), "quantization_config": config}))
    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        read(tmp_path)
    assert "config.json" in str(caught.value)


def changed(path: Path, **tensors: torch.Tensor | None) -> None:
    """The checkpoint with other tensors in the place of some of the first layer's q_proj."""
    stored = load_file(path / "model.safetensors")
    for role, tensor in tensors.items():
        name = f"model.layers.0.self_attn.q_proj.{role}"
        stored.pop(name, None)
        if tensor is not None:
            stored[name] = tensor
    save_file(stored, path / "model.safetensors")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"qzeros": None}, "q_proj.qzeros is missing"),
        ({"scales": torch.ones(3, 64)}, "q_proj.scales has the shape .3, 64."),
        ({"qweight": torch.ones(64, 8)}, "q_proj.qweight is stored as F32"),
        ({"bias": torch.ones(64)}, "no part for .*q_proj.bias"),
    ],
)
def test_tensors_that_do_not_fit_their_layout(
    tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write_quantised(tiny_model("llama"), tmp_path, CASES["awq"])
    changed(tmp_path, **tensors)
    with pytest.raises((CorruptModel, UnsupportedModel), match=said):
        read(tmp_path)


def test_zero_points_are_taken_where_a_config_does_not_call_codes_symmetric(
    tmp_path: Path,
) -> None:
    said = {key: value for key, value in GPTQ.items() if key != "sym"}
    state = write_quantised(
        tiny_model("llama"), tmp_path, type(CASES["gptq"])(said, CASES["gptq alone"].write)
    )
    expected = as_quire_names_them(state, locate(str(tmp_path)).spec())
    assert all(torch.equal(one, expected[name]) for name, one in read(tmp_path).items())


def test_biases_of_zeros_that_tools_write_are_passed_over(tmp_path: Path) -> None:
    write_quantised(tiny_model("llama"), tmp_path, CASES["gptq"])
    changed(tmp_path, bias=torch.zeros(64))
    assert "layers.0.attn.qkv.bias" not in read(tmp_path)


def test_a_module_that_a_config_leaves_out_must_be_plain(tmp_path: Path) -> None:
    case = CASES["gptq"]
    config = {**case.config, "dynamic": {r"-:.*\.q_proj": {}}}
    write_quantised(tiny_model("llama"), tmp_path, type(case)(config, case.write))
    with pytest.raises(CorruptModel, match="q_proj' is not quantised, but it is stored as"):
        read(tmp_path)


def test_codes_without_a_config_are_an_error_that_says_so(tmp_path: Path) -> None:
    write_quantised(tiny_model("llama"), tmp_path, CASES["gptq alone"])
    (tmp_path / "quantize_config.json").unlink()
    with pytest.raises(UnsupportedModel, match="no quantization_config"):
        read(tmp_path)


def test_blocks_of_mxfp4_are_one_expert_each(tmp_path: Path) -> None:
    """Of a stack of experts whose gates and ups stand in turns, the ups of one."""
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (3, 8, 2), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "model.safetensors")
    stored, said = stored_tensors(tmp_path), from_fields(Fields({"quant_method": "mxfp4"}, "it"))
    within = Within(expert=2, first=1, step=2, of=8)
    source = stored_matrix(name, (4, 64), within, stored, said)
    assert source is not None
    found = read_matrix(source, None, None, torch.device("cpu")).dequantised()
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    for row in range(4):
        for column in range(64):
            byte = int(blocks[2, 2 * row + 1, column // 32, column % 32 // 2])
            code = byte >> 4 if column % 2 else byte & 15
            size = values[code & 7] * 2.0 ** (int(scales[2, 2 * row + 1, column // 32]) - 127)
            assert float(found[row, column]) == (-size if code & 8 else size)
