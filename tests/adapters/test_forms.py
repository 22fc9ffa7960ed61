"""Adapters of PEFT's other types that add something of a low rank: AdaLoRA, LoHa and LoKr."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.adapters.plan import plan_adapter
from quire.adapters.ranks import highest_rank
from quire.adapters.read import read_adapter
from quire.adapters.sites import sites_of
from quire.errors import InvalidAdapter
from tests.adapters.conftest import Where
from tests.adapters.peft_files import Peft, make_peft, random_model
from tests.adapters.test_own_numbers import compare
from tests.parity.families import FAMILIES
from tests.ranks.test_shares import CONFIGS, spec_of

MODULES = ("q_proj", "down_proj", "qkv_proj")
R, ALPHA, FIRST_RANK = 3, 5, 6
RANDOM = torch.Generator()


def some(*size: int) -> Tensor:
    return torch.randn(*size, generator=RANDOM) / 2


def adalora(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    """Of which some was pruned: the scale stays that of the first rank."""
    a, b, e = some(R, columns), some(rows, R), some(R, 1)
    delta = b @ (a * e) * ALPHA / (FIRST_RANK + 1e-5)
    return {"lora_A": a, "lora_B": b, "lora_E": e}, delta


def loha(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    w1_a, w2_a, w1_b, w2_b = some(rows, R), some(rows, R), some(R, columns), some(R, columns)
    tensors = {"hada_w1_a": w1_a, "hada_w1_b": w1_b, "hada_w2_a": w2_a, "hada_w2_b": w2_b}
    return tensors, (w1_a @ w1_b) * (w2_a @ w2_b) * ALPHA / R


def lokr(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    """Of a wide and of a high weight one side of w1 is the shorter one."""
    w1 = some(4, 8) if rows > columns else some(8, 4)
    w2_a, w2_b = some(rows // len(w1), R), some(R, columns // w1.shape[1])
    tensors = {"lokr_w1": w1, "lokr_w2_a": w2_a, "lokr_w2_b": w2_b}
    return tensors, torch.kron(w1, w2_a @ w2_b) * ALPHA / R


def lokr_of_two(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    tensors, _ = lokr(rows, columns)
    w1 = tensors.pop("lokr_w1")
    tensors |= {"lokr_w1_a": some(len(w1), R), "lokr_w1_b": some(R, w1.shape[1])}
    w1, w2 = (tensors[f"lokr_{w}_a"] @ tensors[f"lokr_{w}_b"] for w in ("w1", "w2"))
    return tensors, torch.kron(w1, w2) * ALPHA / R


FORMS = {
    "adalora": (adalora, "ADALORA", {"lora_alpha": ALPHA, "init_r": FIRST_RANK, "r": 8}),
    "loha": (loha, "LOHA", {"alpha": ALPHA, "r": R}),
    "lokr": (lokr, "LOKR", {"alpha": ALPHA, "r": R}),
    "lokr of two": (lokr_of_two, "LOKR", {"alpha": ALPHA, "r": R}),
}


def made(form: str, model: Any) -> tuple[Peft, dict[str, Tensor]]:
    """An adapter, and the weights that it makes of the model's."""
    RANDOM.manual_seed(2)
    make, kind, fields = FORMS[form]
    config = {"peft_type": kind, "target_modules": list(MODULES[1:]), **fields}
    peft, own = Peft({}, {}, config=config), {}
    for name, module in model.named_modules():
        if name.endswith(MODULES):
            tensors, delta = make(*module.weight.shape)
            peft.more |= {f"{name}.{end}": tensor for end, tensor in tensors.items()}
            own[f"{name}.weight"] = module.weight.detach() + delta
    return peft, own


@pytest.mark.parametrize("family", ["qwen3", "phi3, window 9"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_form_makes_of_its_matrices_is_added(
    form: str, family: str, where: Where, tmp_path: Path
) -> None:
    model = random_model(FAMILIES[family])
    model.save_pretrained(tmp_path / "base")
    peft, own = made(form, model)
    compare(where, tmp_path / "base", model, peft, own, max_lora_rank=32)


@pytest.mark.parametrize(
    ("form", "change", "words"),
    [
        ("loha", {}, "rank 9.*max_lora_rank is 8"),
        ("lokr", {}, "rank 12.*max_lora_rank is 8"),
        (
            "lokr",
            {"lokr_w2": (12, 12), "lokr_w2_a": None, "lokr_w2_b": None},
            "lokr_w2 .*not built",
        ),
        ("loha", {"hada_w2_b": None}, "hada_w2_a .*: not built for loha"),
        ("loha", {"hada_w1_a": (95, R), "hada_w2_a": (95, R)}, r"of \[95, 48\].*is \[96, 48\]"),
        ("adalora", {"lora_E": (R + 1, 1)}, "not built for adalora"),
        ("adalora", {"lora_E": None}, "not built for adalora"),
    ],
)
def test_what_is_no_such_form_is_refused(
    form: str, change: dict[str, tuple[int, int] | None], words: str, tmp_path: Path
) -> None:
    peft, _ = made(form, random_model(FAMILIES["qwen3"]))
    for end, shape in change.items():
        name = f"model.layers.0.self_attn.q_proj.{end}"
        peft.more.pop(name, None)
        if shape is not None:
            peft.more[name] = torch.ones(shape)
    sites = sites_of(spec_of(CONFIGS["qwen3"]))
    with pytest.raises(InvalidAdapter) as found:
        plan_adapter(peft.save(tmp_path / "a"), sites, 32 if change else 8)
    assert re.search(words, str(found.value))


@pytest.mark.parametrize(("form", "rank"), [("adalora", R), ("loha", R * R), ("lokr", 4 * R)])
def test_files_alone_say_which_rank_is_needed(form: str, rank: int, tmp_path: Path) -> None:
    peft, _ = made(form, random_model(FAMILIES["qwen3"]))
    path, sites = peft.save(tmp_path / "a"), sites_of(spec_of(CONFIGS["qwen3"]))
    assert highest_rank(path) == rank
    plan = plan_adapter(path, sites, rank)
    read = read_adapter(plan, torch.float32, lambda names: (), sites.rows_of)
    assert {len(one.a) for some in read.added.values() for one in some} == {rank}
    with pytest.raises(InvalidAdapter, match="max_lora_rank"):
        plan_adapter(path, sites, rank - 1)


def test_what_was_pruned_altogether_changes_nothing(tmp_path: Path) -> None:
    peft, _ = made("adalora", random_model(FAMILIES["qwen3"]))
    start, sites = "model.layers.0.self_attn.q_proj", sites_of(spec_of(CONFIGS["qwen3"]))
    before = plan_adapter(peft.save(tmp_path / "a"), sites, 8).changes
    for end, shape in (("A", (0, 48)), ("B", (96, 0)), ("E", (0, 1))):
        peft.more[f"{start}.lora_{end}"] = torch.ones(shape)
    after = plan_adapter(peft.save(tmp_path / "b"), sites, 8).changes
    assert {one.part.module for one in before} - {one.part.module for one in after} == {start}


def test_matrices_of_another_form_are_refused(tmp_path: Path) -> None:
    model = random_model(FAMILIES["qwen3"])
    peft, sites = make_peft(model, ("q_proj",)), sites_of(spec_of(CONFIGS["qwen3"]))
    peft.more = {"model.layers.0.self_attn.q_proj.lora_E": torch.ones(4, 1)}
    with pytest.raises(InvalidAdapter, match="has lora_E, which does not belong"):
        plan_adapter(peft.save(tmp_path / "a"), sites, 8)


LESS = {"init_lora_weights": "olora"}


@pytest.mark.parametrize("has_base", [False, True])
def test_what_olora_took_from_the_base_is_taken_from_it(has_base: bool, tmp_path: Path) -> None:
    """Unless the adapter brings what is left of it."""
    model = random_model(FAMILIES["qwen3 untied"])
    peft = make_peft(model, ("lm_head",), **LESS)
    sites = sites_of(replace(spec_of(CONFIGS["qwen3"]), tied_embeddings=False))
    base = model.lm_head.weight.detach()
    peft.more = {"lm_head.base_layer.weight": base / 2} if has_base else {}
    path = peft.save(tmp_path / "a")
    plan = plan_adapter(path, sites, 8)
    assert highest_rank(path) == 8
    assert plan.needs_base
    read = read_adapter(
        plan, torch.float32, lambda names: [(name, base) for name in names], sites.rows_of
    )
    [added] = read.added["head"]
    q, r = torch.linalg.qr(base)
    less = torch.zeros(()) if has_base else q[:, :4] @ r[:4]
    expected = peft.scale("lm_head") * (peft.b["lm_head"] @ peft.a["lm_head"] - less)
    assert torch.allclose(added.b @ added.a, expected, atol=1e-5)
    assert ("head" in read.own) == has_base
    with pytest.raises(InvalidAdapter, match="max_lora_rank"):
        plan_adapter(path, sites, 3 if has_base else 7)


@pytest.mark.parametrize(
    ("family", "target", "more", "words"),
    [
        ("qwen3 untied", "q_proj", {"use_dora": True}, "with use_dora: not built"),
        ("qwen3", "lm_head", {}, "tied head"),
        ("qwen3", "q_proj", {"init_lora_weights": "pissa_niter_4"}, "path_initial_model.*merge"),
    ],
)
def test_what_another_start_did_to_the_base_is_refused(
    family: str, target: str, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    peft = make_peft(random_model(FAMILIES[family]), (target,), **{**LESS, **more})
    spec = spec_of(CONFIGS["qwen3"])
    sites = sites_of(replace(spec, tied_embeddings=family == "qwen3"))
    with pytest.raises(InvalidAdapter, match=words):
        plan_adapter(peft.save(tmp_path / "a"), sites, 8)


def test_olora_of_a_base_whose_files_are_not_there_is_refused(tmp_path: Path) -> None:
    peft = make_peft(random_model(FAMILIES["qwen3"]), ("q_proj",), **LESS)
    sites = sites_of(spec_of(CONFIGS["qwen3"]))
    plan = plan_adapter(peft.save(tmp_path / "a"), sites, 8)
    with pytest.raises(InvalidAdapter, match="OLoRA needs the base's own weights"):
        read_adapter(plan, torch.float32, lambda names: (), sites.rows_of)
