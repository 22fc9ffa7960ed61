"""Modules as Transformers calls them, which is what PEFT writes: of every family."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.adapters.config import read_adapter_config
from quire.adapters.matching import Matcher
from quire.adapters.names import TensorName, tensor_name
from quire.adapters.sites import sites_of
from quire.adapters.stacks import stack_of
from quire.errors import InvalidAdapter
from quire.weights.hf_config import spec_from_hf
from tests.parity.families import FAMILIES
from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import LATENTS, MORE
from tests.parity.newest_families import NEWEST

EVERY = {**FAMILIES, **MORE, **LATENTS, **BY_KIND, **LATER, **NEWEST, **WITH_STATES}


@pytest.mark.parametrize("name", EVERY)
def test_every_product_is_found_by_the_name_of_its_module(name: str, tmp_path: Path) -> None:
    """Or refused as a part that adapters do not change."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(deepcopy(EVERY[name]))
    said = json.loads(EVERY[name].to_json_string(use_diff=False))
    sites = sites_of(spec_from_hf({**said, "architectures": [type(model).__name__]}))
    written = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2})
    (tmp_path / "adapter_config.json").write_text(written)
    matcher = Matcher(tmp_path, read_adapter_config(tmp_path), sites, 8)
    unknown = [module for module in products_of(model) if not is_known(matcher, module)]
    stacks = {module: stack_of(matcher, lora_a(module)) for module in experts_of(model)}
    unknown += [module for module in stacks if not stacks[module] and not is_known(matcher, module)]
    assert not unknown


def products_of(model: Any) -> list[str]:
    """Linear parts, embeddings, and routers that are classes of their own."""
    found = model.named_modules()
    return [name for name, part in found if getattr(getattr(part, "weight", None), "ndim", 0) == 2]


def experts_of(model: Any) -> set[str]:
    """Modules with tensors of all experts."""
    every = ((name.rpartition("."), parameter) for name, parameter in model.named_parameters())
    kinds = ("gate_up_proj", "down_proj")
    return {name[0] for name, parameter in every if name[2] in kinds and parameter.ndim == 3}


def lora_a(module: str) -> TensorName:
    found = tensor_name(f"base_model.model.{module}.lora_A.weight")
    assert found is not None
    return found


def is_known(matcher: Matcher, module: str) -> bool:
    try:
        return bool(matcher.parts_of(lora_a(module)))
    except InvalidAdapter as error:
        return "adapters do not change" in str(error)
