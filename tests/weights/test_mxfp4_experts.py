"""gpt-oss as it is published: experts in MXFP4, everything else plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.gpt_oss import GptOssConfig, GptOssForCausalLM

from quire.errors import NotEnoughMemory
from quire.weights import checks
from quire.weights.load import load_weights
from quire.weights.load_kept import load_kept_weights
from quire.weights.quantised.kept import Products
from quire.weights.quantised.unpack import QuantisedMatrix
from quire.weights.source import locate
from tests.parity.families import YARN
from tests.parity.more_families import GPT_OSS, random_model
from tests.parity.test_families import check_directory
from tests.parity.test_more_families import check_logits

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat([VALUES, -VALUES])
SIZES = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": YARN}


def written(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Experts [E, in, out] -> blocks, scales, and what these mean, again [E, in, out]. A code is
    four bits, two in a byte with the first below; 32 along `in` share a power of two."""
    rows = weight.transpose(1, 2).contiguous()
    groups = rows.view(*rows.shape[:2], -1, 32)
    power = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=1e-9))) - 2
    scaled = groups / torch.exp2(power)[..., None]
    codes = (scaled[..., None] - VALUES).abs().argmin(-1)
    meant = VALUES[codes] * torch.exp2(power)[..., None]
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    scales = (power + 127).to(torch.uint8)
    return blocks, scales, meant.view(rows.shape).transpose(1, 2).contiguous()


def publish(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    """The model's files as they are published, and the model that they are."""
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    stored: dict[str, Tensor] = load_file(file)
    state = model.state_dict()
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        weight = stored.pop(name)
        blocks, scales, meant = written(weight)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name] = meant
    save_file(stored, file, {"format": "pt"})
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (directory / "config.json").write_text(json.dumps(config))
    made = GptOssForCausalLM._from_config(model.config, attn_implementation="eager").eval()
    made.load_state_dict(state)
    return made


def test_experts_stay_in_their_codes_where_there_are_products(tmp_path: Path) -> None:
    """Two stored tensors in turns make one weight; nothing else is quantised."""
    publish(random_model(GptOssConfig(**SIZES)), tmp_path)
    files, device = locate(str(tmp_path)), torch.device("cpu")
    spec = files.spec()
    plain = load_weights(files, spec, dtype=torch.float32, device=device)
    for experts in (True, False):
        products = Products(fp8=True, experts=experts)
        kept = load_kept_weights(files, spec, dtype=torch.float32, device=device, products=products)
        in_codes = {name for name, one in kept.items() if not isinstance(one, Tensor)}
        matrices = {n for n in plain if ".experts." in n and n.endswith(".weight")}
        assert in_codes == (matrices if experts else set())
        for name, one in kept.items():
            found = one if isinstance(one, Tensor) else one.dequantised()
            assert torch.equal(found, plain[name]), name


def test_experts_that_stay_as_they_are_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates and ups share a tensor; counted twice, a model that fits would be refused."""
    publish(random_model(GptOssConfig(**SIZES)), tmp_path)
    needed = sum(one.nbytes for one in load_file(tmp_path / "model.safetensors").values())
    files, device = locate(str(tmp_path)), torch.device("cpu")
    spec, products = files.spec(), Products(fp8=True, experts=True)

    def load() -> dict[str, Tensor | QuantisedMatrix]:
        return load_kept_weights(files, spec, dtype=torch.float32, device=device, products=products)

    monkeypatch.setattr(checks, "free_memory", lambda: needed * 1.01)
    assert load()
    monkeypatch.setattr(checks, "free_memory", lambda: needed * 0.99)
    with pytest.raises(NotEnoughMemory):
        load()


@pytest.mark.parametrize("tied", [False, True])
def test_published_files_are_the_model_that_they_mean(tied: bool, tmp_path: Path) -> None:
    model = random_model(GptOssConfig(**SIZES, tie_word_embeddings=tied))
    oracle = publish(model, tmp_path)
    check_logits(tmp_path, oracle)
    check_directory(tmp_path, oracle, "mxfp4", count=4, most=8)
