"""One base with three adapters on disk, for all tests of this folder; and where they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - before Transformers imports Triton
from quire import LoRARequest
from tests.adapters.peft_files import Peft, make_peft, named, random_model
from tests.parity.families import FAMILIES

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Shelf:
    """A base, its adapters, and where they are."""

    base: Path
    model: Any
    pefts: tuple[Peft, ...]
    requests: tuple[LoRARequest, ...]


@dataclass(frozen=True)
class Where:
    """A device, and how near its logprobs are to those of Transformers on the host."""

    options: dict[str, Any] = field(default_factory=dict)
    within: float = 1e-4


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> Iterator[Where]:
    if request.param == "cpu":
        yield Where({"device": "cpu"})
        return
    matmul = torch.backends.cuda.matmul  # some images of torch round float32 to tf32
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield Where({"device": "cuda"}, within=1e-3)
    matmul.allow_tf32 = before


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    directory = tmp_path_factory.mktemp("adapters")
    model = random_model(FAMILIES["qwen3"])
    model.save_pretrained(directory / "base")
    pefts = tuple(make_peft(model, TARGETS, seed=seed, rank=2 + seed) for seed in (1, 2, 3))
    paths = [peft.save(directory / f"adapter-{i}") for i, peft in enumerate(pefts)]
    requests = tuple(named(path, i + 1) for i, path in enumerate(paths))
    return Shelf(directory / "base", model, pefts, requests)
