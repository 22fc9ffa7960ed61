"""LoRA on the experts of mixtures and on their routers, as one module each and as one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.adapters.plan import plan_adapter
from quire.adapters.ranks import highest_rank
from quire.adapters.sites import sites_of
from quire.errors import InvalidAdapter
from tests.adapters.conftest import Where
from tests.adapters.peft_files import (
    Peft,
    applied,
    exchanged,
    logprobs,
    make_peft,
    named,
    open_llm,
    random_model,
)
from tests.adapters.test_parity import GREEDY, PROMPTS, check
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import MORE
from tests.parity.newest_families import NEWEST
from tests.ranks.test_shares import CONFIGS, spec_of

RANK, ALPHA = 2, 6
Pairs = dict[tuple[str, int], tuple[Tensor, Tensor]]  # by tensor and expert: A [r, in], B [out, r]


def of_experts(model: Any) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            module, _, tensor = name.rpartition(".")
            yield module, tensor, parameter.detach()


def random_pairs(model: Any, *, transposed: bool) -> dict[str, Pairs]:
    """For every module of experts; `transposed`: the model has weights as [in, out]."""
    made = torch.Generator().manual_seed(5)
    found: dict[str, Pairs] = {}
    for module, tensor, parameter in of_experts(model):
        for expert, weight in enumerate(parameter):
            rows, columns = weight.shape[::-1] if transposed else weight.shape
            a = torch.randn(RANK, columns, generator=made) / columns**0.5
            b = torch.randn(rows, RANK, generator=made)
            found.setdefault(module, {})[tensor, expert] = a, b
    return found


def changed(model: Any, pairs: dict[str, Pairs], *, transposed: bool) -> dict[str, Tensor]:
    """The model's tensors with all that added."""
    own: dict[str, Tensor] = {}
    for module, tensor, parameter in of_experts(model):
        for expert in range(len(parameter)):
            a, b = pairs[module][tensor, expert]
            delta = b @ a * (ALPHA / RANK)
            whole = own.setdefault(f"{module}.{tensor}", parameter.clone())
            whole[expert] += delta.T if transposed else delta
    return own


def stacked(pairs: dict[str, Pairs], *, swapped: bool) -> dict[str, Tensor]:
    """As PEFT stores them for tensors of all experts: one wrapper inside the other."""
    tensors = {}
    for module, some in pairs.items():
        for wrapped, tensor in (("", "down_proj"), (".base_layer", "gate_up_proj")):
            ours = [pair for (name, _), pair in some.items() if name == tensor]
            if swapped:
                ours = [(b.T, a.T) for a, b in ours]
            tensors[f"{module}{wrapped}.lora_A.weight"] = torch.cat([a for a, _ in ours])
            b = torch.stack([b for _, b in ours], dim=2).flatten(1)
            tensors[f"{module}{wrapped}.lora_B.weight"] = b
    return tensors


def one_by_one(pairs: dict[str, Pairs], names: tuple[str, ...]) -> dict[str, Tensor]:
    """As PEFT stores them for a module of each expert: gate and up have A in common here."""
    tensors, (folder, gate, up, down) = {}, names
    for module, some in pairs.items():
        for (tensor, expert), (a, b) in some.items():
            start = f"{module.replace('mlp.experts', folder)}.{expert}"
            parts = {down: b}
            if tensor == "gate_up_proj":
                half = len(b) // 2
                parts = {gate: b[:half], up: b[half:]}
            for end, rows in parts.items():
                tensors[f"{start}.{end}.lora_A.weight"] = a.clone()
                tensors[f"{start}.{end}.lora_B.weight"] = rows
    return tensors


def adapter(more: dict[str, Tensor]) -> Peft:
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "peft_version": "0.21.2"}
    return Peft({}, {}, config=config, more=more)


def compare(where: Where, base: Path, model: Any, peft: Peft, own: dict[str, Tensor]) -> None:
    """A batch of it, of a plain adapter and of none."""
    plain = make_peft(model, ("q_proj",), seed=2, rank=3)
    folder = base.parent
    asked = [named(peft.save(folder / "own")), None, named(plain.save(folder / "plain"), 2)]
    with open_llm(base, **where.options) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=asked)
    with exchanged(model, own):
        check(outputs[0], model, PROMPTS[0], where.within)
        strange = logprobs(model, PROMPTS[0])
    assert (strange - logprobs(model, PROMPTS[0])).abs().max() > 0.05
    check(outputs[1], model, PROMPTS[1], where.within)
    with applied(model, plain):
        check(outputs[2], model, PROMPTS[2], where.within)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "family",
    [
        "qwen3 moe",
        "mixtral",
        "gpt oss",
        "lfm2 moe",
        "hy_v3",
        "phimoe",
        "granite moe, shared",
        "llama4",
    ],
)
def test_a_tensor_of_all_experts_is_changed_expert_by_expert(
    family: str, swapped: bool, where: Where, tmp_path: Path
) -> None:
    every = {**MORE, **LATER, **NEWEST, **WITH_STATES}
    model, transposed = random_model(every[family]), family in ("gpt oss", "llama4")
    model.save_pretrained(tmp_path / "base")
    pairs = random_pairs(model, transposed=transposed)
    peft = adapter(stacked(pairs, swapped=swapped))
    compare(where, tmp_path / "base", model, peft, changed(model, pairs, transposed=transposed))


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen2 moe", ("mlp.experts", "gate_proj", "up_proj", "down_proj")),
        ("mixtral", ("block_sparse_moe.experts", "w1", "w3", "w2")),
    ],
)
def test_a_module_of_each_expert_is_changed_by_its_name(
    family: str, names: tuple[str, ...], where: Where, tmp_path: Path
) -> None:
    model = random_model(MORE[family])
    model.save_pretrained(tmp_path / "base")
    pairs = random_pairs(model, transposed=False)
    compare(
        where,
        tmp_path / "base",
        model,
        adapter(one_by_one(pairs, names)),
        changed(model, pairs, transposed=False),
    )


@pytest.mark.parametrize(
    ("family", "router"),
    [
        *(("qwen2 moe", "mlp.gate"), ("mixtral", "mlp.gate"), ("gpt oss", "router")),
        *(("hy_v3", "mlp.gate"), ("phimoe", "mlp.router")),
        ("granite moe, shared", "block_sparse_moe.router"),
    ],
)
def test_a_router_chooses_by_what_is_added_to_it(
    family: str, router: str, where: Where, tmp_path: Path
) -> None:
    model = random_model({**MORE, **LATER, **NEWEST, **WITH_STATES}[family])
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, (router,), lora_alpha=20)
    own = {
        f"{module}.weight": model.get_submodule(module).weight.detach()
        + peft.scale(module) * peft.b[module] @ a
        for module, a in peft.a.items()
    }
    compare(where, tmp_path / "base", model, peft, own)


def test_sides_that_are_equal_are_taken_only_where_it_is_known_which_is_which(
    tmp_path: Path,
) -> None:
    """Of gpt-oss hidden and inner size are one number, so that of `down_proj` alone they say
    nothing."""
    config = deepcopy(CONFIGS["gpt oss"])
    config.intermediate_size = config.hidden_size
    sites = sites_of(spec_of(config))

    def changes(name: str, version: str, *tensors: tuple[str, int, int]) -> set[bool]:
        start = "model.layers.0.mlp.experts"
        more = {}
        for inside, columns, rows in tensors:
            more[f"{start}{inside}.lora_A.weight"] = torch.ones(8 * RANK, columns)
            more[f"{start}{inside}.lora_B.weight"] = torch.ones(rows, 8 * RANK)
        peft = adapter(more)
        peft.config["peft_version"] = version
        plan = plan_adapter(peft.save(tmp_path / name), sites, 16)
        assert {one.part.expert for one in plan.changes} == set(range(8))
        assert highest_rank(tmp_path / name) == RANK
        return {one.stacked.swapped for one in plan.changes if one.stacked is not None}

    down, up, up_swapped = ("", 48, 48), (".base_layer", 48, 96), (".base_layer", 96, 48)
    assert changes("new", "0.21.0", down) == {False}
    assert changes("beside", "0.19.0", down, up) == {False}
    assert changes("beside swapped", "0.19.0", down, up_swapped) == {True}
    with pytest.raises(InvalidAdapter, match=r"two equal sides.*PEFT 0\.21"):
        changes("old", "0.19.0", down)
    with pytest.raises(InvalidAdapter, match="shape"):
        changes("other", "0.21.0", ("", 47, 48))
    with pytest.raises(InvalidAdapter, match="changes down_proj twice"):
        changes("twice", "0.21.0", down, (".base_layer", 48, 48))


@pytest.mark.parametrize("ranks", [{}, {"down_proj": 7, "q_proj": 3}])
def test_a_file_for_all_experts_needs_the_highest_rank_that_its_config_names(
    ranks: dict[str, int], tmp_path: Path
) -> None:
    """Its A has the sum of all ranks, which does not say what any of them is."""
    more = {"model.layers.0.mlp.experts.lora_A.weight": torch.ones(8 * RANK, 48)}
    peft = adapter(more)
    peft.config["rank_pattern"] = ranks
    assert highest_rank(peft.save(tmp_path)) == max(RANK, *ranks.values(), 0)
