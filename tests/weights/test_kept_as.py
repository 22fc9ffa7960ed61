"""What of a checkpoint's layouts products can be computed in, by its config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.session.quantisation import weight_facts
from quire.weights.source import locate

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (AWQ, "4 bits"),
        ({**AWQ, "group_size": 64}, "4 bits"),
        ({**AWQ, "group_size": -1}, "4 bits"),
        ({**AWQ, "group_size": 96}, ""),
        (GPTQ, "4 bits"),
        ({**GPTQ, "bits": 8}, ""),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        (None, ""),
    ],
)
def test_layouts_name_what_products_there_are(
    tmp_path: Path, said: dict[str, Any] | None, found: str
) -> None:
    config: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}
    config |= {**sizes, **heads, "rms_norm_eps": 1e-5}
    config |= {} if said is None else {"quantization_config": said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert weight_facts(locate(str(tmp_path), weights=False)).kept_as == found
