"""IA3 of PEFT: what comes out of a module, or goes into it, is multiplied with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.adapters.plan import plan_adapter
from quire.adapters.ranks import highest_rank
from quire.adapters.read import read_adapter
from quire.adapters.sites import sites_of, sites_of_products
from quire.errors import InvalidAdapter
from quire.models.fallback.loaded import Product
from tests.adapters.conftest import Where
from tests.adapters.peft_files import Peft, random_model
from tests.adapters.test_own_numbers import compare
from tests.parity.families import FAMILIES
from tests.parity.families_with_states import WITH_STATES, skip_if_normed_together
from tests.parity.more_families import MORE
from tests.ranks.test_shares import CONFIGS, spec_of

OUT = (
    *("q_proj", "k_proj", "qkv_proj", "o_proj", "up_proj", "gate_up_proj", "in_proj_qkvz"),
    *("in_proj_ba", "mamba.in_proj", "shared_mlp.input_linear"),
)
IN = ("down_proj", "shared_mlp.output_linear")
Q = "model.layers.0.self_attn.q_proj"


def ia3(tensors: dict[str, Tensor]) -> Peft:
    config = {"peft_type": "IA3", "target_modules": [*OUT, *IN], "feedforward_modules": [*IN]}
    return Peft({}, {}, config=config, more={f"{name}.ia3_l": one for name, one in tensors.items()})


def made(model: Any) -> tuple[Peft, dict[str, Tensor]]:
    """An adapter, and the parameters that it makes of the model's."""
    random, tensors, own = torch.Generator().manual_seed(4), {}, {}
    for name, module in model.named_modules():
        if not name.endswith((*OUT, *IN)):
            continue
        shape = (1, module.in_features) if name.endswith(IN) else (module.out_features, 1)
        tensors[name] = by = 1 + torch.randn(shape, generator=random) / 3
        own[f"{name}.weight"] = module.weight.detach() * by
        if module.bias is not None and not name.endswith(IN):
            own[f"{name}.bias"] = module.bias.detach() * by[:, 0]
    return ia3(tensors), own


@pytest.mark.parametrize(
    "family",
    [
        *("llama untied, every bias", "phi3, partial longrope", "qwen3_next"),
        "granite hybrid, experts, every bias, rope, untied",
    ],
)
def test_what_comes_out_and_what_goes_in_is_multiplied(
    family: str, where: Where, tmp_path: Path
) -> None:
    """With biases, which are multiplied as well; in fused modules, with rows in another order."""
    skip_if_normed_together(family)
    model = random_model({**FAMILIES, **MORE, **WITH_STATES}[family])
    model.save_pretrained(tmp_path / "base")
    peft, own = made(model)
    peft.config["target_modules"].insert(0, "o_proj")  # of the plain adapter beside it
    compare(where, tmp_path / "base", model, peft, own)


@pytest.mark.parametrize(
    ("module", "shape", "words"),
    [
        ("model.layers.0.self_attn.o_proj", (1, 96), "goes into it.*behind a gate alone.*[Mm]erge"),
        ("model.embed_tokens", (48, 1), "not built for ia3"),
        (Q, (95, 1), r"has the shape \[95, 1\], and this model asks for \[96, 1\]"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(
    module: str, shape: tuple[int, int], words: str, tmp_path: Path
) -> None:
    path = ia3({module: torch.ones(shape)}).save(tmp_path / "a")
    with pytest.raises(InvalidAdapter, match=words):
        plan_adapter(path, sites_of(spec_of(CONFIGS["qwen3"])), 8)


def test_it_needs_no_rank(tmp_path: Path) -> None:
    path = ia3({Q: torch.ones(96, 1)}).save(tmp_path / "a")
    assert highest_rank(path) == 1
    plan = plan_adapter(path, sites_of(spec_of(CONFIGS["qwen3"])), 1)
    assert len(plan.scales) == 1
    assert not plan.needs_base


def test_a_bias_that_cannot_be_read_is_not_left_as_it_is(tmp_path: Path) -> None:
    """As in models that Transformers computes, which alone knows what files call it."""
    path = ia3({Q: torch.ones(8, 1)}).save(tmp_path / "a")
    for has_bias in (False, True):
        sites = sites_of_products([Product(Q, 8, 8, has_bias)])
        plan = plan_adapter(path, sites, 1)
        assert plan.needs_base == has_bias
        if not has_bias:
            read_adapter(plan, torch.float32, lambda names: (), sites.rows_of)
            continue
        with pytest.raises(InvalidAdapter, match=f"{Q}.bias is not among"):
            read_adapter(plan, torch.float32, lambda names: (), sites.rows_of)
