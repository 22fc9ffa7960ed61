"""Adapters of the weight that makes keys and values of latents, neither of which are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.adapters.plan import plan_adapter
from quire.adapters.read import AdapterWeights
from quire.adapters.sites import sites_of
from quire.adapters.taken_room import needs_of
from quire.backends.adapter_ops import AdapterRoom, Added
from quire.backends.adapters import LoopedAdapters
from quire.backends.triton.adapters import StackedAdapters
from quire.errors import InvalidAdapter
from tests.adapters.peft_files import Peft, make_peft, named, open_llm, random_model
from tests.adapters.test_parity import GREEDY, PROMPTS
from tests.adapters.test_scales import ia3
from tests.backends.reference import ReferenceLinear
from tests.parity.more_families import LATENTS
from tests.ranks.test_shares import spec_of

LITE = LATENTS["deepseek v2 lite"]
KV_B = "model.layers.0.self_attn.kv_b_proj"
HEADS, PLAIN, VALUE, INNER, SLOTS = 3, 4, 5, 6, 4


def added(*ranks: int) -> tuple[list[Added], Tensor]:
    """What an adapter adds, for rows that are divided among so many, and the sum of it."""
    rows, parts = HEADS * (PLAIN + VALUE), []
    total, cuts = torch.zeros(rows, INNER), torch.linspace(0, rows, len(ranks) + 1).int().tolist()
    for rank, first, last in zip(ranks, cuts, cuts[1:], strict=False):
        a, b = torch.randn(rank, INNER), torch.randn(last - first, rank)
        parts.append(Added(0, first, a, b))
        total[first:last] += b @ a
    return parts, total


def test_keys_and_values_change_as_the_weight_does() -> None:
    """On a host and on a device, in any slots, and after a slot got another adapter or none."""
    torch.manual_seed(3)
    room = AdapterRoom(SLOTS, 8, torch.float32, torch.device("cpu"))
    kinds: list[Any] = [LoopedAdapters(ReferenceLinear, lambda count: count), StackedAdapters(room)]
    slots = np.array([2, -1, 0, 0, 3, 2, 1], np.int32)
    queries, rows = torch.randn(7, HEADS, PLAIN), torch.randn(7, HEADS, INNER)
    given = {0: added(2), 2: added(3), 3: added(1, 2)}
    pairs = [kind.pairs(HEADS, PLAIN, VALUE) for kind in kinds]
    for slot, (parts, _) in [(0, added(5)), *given.items(), (1, added(2)), (1, ([], None))]:
        for one in pairs:
            one.load(slot, parts)
    changes = [given[s][1] if s in given else torch.zeros(27, INNER) for s in slots.tolist()]
    by_head = torch.stack(changes).view(7, HEADS, PLAIN + VALUE, INNER)
    keys, values = by_head[:, :, :PLAIN], by_head[:, :, PLAIN:]
    for kind, one in zip(kinds, pairs, strict=True):
        base_rows, base_values = torch.randn(7, HEADS, INNER), torch.randn(7, HEADS, VALUE)
        # As they come: parts of wider tensors.
        to_rows, to_values = (torch.cat([y, y], -1) for y in (base_rows, base_values))
        one.add_to_rows(queries, to_rows[..., :INNER], kind.lines(slots))
        one.add_to_values(rows, to_values[..., :VALUE], kind.lines(slots))
        expected = base_rows + torch.einsum("thp,thpk->thk", queries, keys)
        assert torch.allclose(to_rows[..., :INNER], expected, atol=1e-5)
        expected = base_values + torch.einsum("thk,thvk->thv", rows, values)
        assert torch.allclose(to_values[..., :VALUE], expected, atol=1e-5)
        assert torch.equal(to_rows[..., INNER:], base_rows)
        assert one.variant
        one.release()
        assert not one.variant


@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_answer_as_one_does(seed: int, tmp_path: Path) -> None:
    model = random_model(LITE)
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, ("kv_b_proj", "q_proj", "o_proj"), seed=seed)
    asked = [named(peft.save(tmp_path / "a")), None, None]
    found = []
    for options in ({}, {"tensor_parallel_size": 2}):
        with open_llm(tmp_path / "base", **options) as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=asked)
            plain = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0].outputs[0]
        found.append([list(one.outputs[0].token_ids) for one in outputs])
        assert found[-1][0] != list(plain.token_ids)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: make_peft(random_model(LITE), ("kv_b_proj",), use_dora=True), "DoRA: not built"),
        (lambda: ia3({KV_B: torch.ones(LITE.num_attention_heads * 28, 1)}), "not built for ia3"),
        (lambda: whole(KV_B), "more than A and B: not built"),
    ],
    ids=["dora", "ia3", "whole"],
)
def test_what_is_more_than_a_and_b_is_refused(made: Any, words: str, tmp_path: Path) -> None:
    path = made().save(tmp_path / "a")
    with pytest.raises(InvalidAdapter, match=f"kv_b_proj.*{words}.*[Mm]erge"):
        plan_adapter(path, sites_of(spec_of(LITE)), 16)


def whole(module: str) -> Peft:
    """An adapter with a weight of its own for this module."""
    peft = make_peft(random_model(LITE), ("q_proj",), modules_to_save=["kv_b_proj"])
    (part, *_) = sites_of(spec_of(LITE)).parts[module]
    peft.more = {f"{module}.weight": torch.ones(part.within.of or part.rows, part.columns)}
    return peft


def test_each_adapter_takes_its_own_memory() -> None:
    parts, _ = added(2)
    (need,) = needs_of(AdapterWeights({"layers.0.attn.kv_b": tuple(parts)}), SLOTS, 16)
    assert not need.for_all and need.num_bytes >= sum(one.num_bytes for one in parts)
