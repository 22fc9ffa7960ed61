"""Adapters whose own head or experts do not fit the memory that is left are refused, not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from quire.adapters.read import AdapterWeights
from quire.adapters.taken_room import MARGIN, Need, TakenRoom, needs_of
from quire.backends.adapter_ops import Added, OwnNumbers
from quire.errors import AdapterFailed
from tests.adapters.conftest import Shelf
from tests.adapters.peft_files import make_peft, named, open_llm
from tests.adapters.test_parity import GREEDY, PROMPTS

HEAD = [Need("head", 1_000_000)]


def room_of(free: int, num_slots: int = 2) -> TakenRoom:
    return TakenRoom(num_slots, lambda: MARGIN + free)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    room = room_of(400_000)
    assert "takes 1 MB of its own" in room.promise(HEAD, 0)
    assert "0 MB are left" in room.promise(HEAD, 0)
    assert not room.promise([], 0)


def test_memory_of_the_same_form_is_used_again() -> None:
    room = room_of(0)
    room.load(0, HEAD)
    assert not room.promise(HEAD, 0)  # in its place
    assert room.promise(HEAD, 1)  # beside it
    assert not room.promise(HEAD, None)  # the slot that ends may be its own
    room.load(0, [])
    assert not room.promise(HEAD, 1)  # what it left is still there


def test_two_that_begin_together_do_not_share_what_is_free() -> None:
    room = room_of(1_500_000)
    assert not room.promise(HEAD, 0)
    assert room.promise(HEAD, 1)
    room.load(0, HEAD)
    assert not room.promise(HEAD, 1)  # the device says now what is left


def test_what_is_made_for_all_slots_is_needed_once() -> None:
    added = (Added(0, 0, torch.zeros(4, 10), torch.zeros(6, 4)),)
    of_all = AdapterWeights(
        {"layers.0.attn.qkv": added, "head": added, "layers.0.mlp.experts.3.down": added},
        {"embed": OwnNumbers(torch.arange(2), torch.zeros(2, 5))},
    )
    needs = needs_of(of_all, 3, 16)
    assert [(one.num_bytes, one.for_all) for one in needs] == [
        (2 * 8 + 2 * 5 * 4, False),
        (16 * (10 + 6) * 4 * 3, True),
        (16 * (10 + 6) * 4, False),
    ]
    room = room_of(0)
    room.load(0, needs)
    assert not room.promise([one for one in needs if one.for_all], 1)
    assert room.promise([one for one in needs if not one.for_all], 1)


def test_a_head_that_does_not_fit_costs_its_own_prompt_alone(shelf: Shelf, tmp_path: Path) -> None:
    peft = make_peft(shelf.model, ("q_proj",), modules_to_save=["lm_head"])
    peft.more = {"lm_head.weight": torch.randn(96, 48)}
    own, free = named(peft.save(tmp_path / "own"), 7), [MARGIN]
    other = named(peft.save(tmp_path / "other"), 8)
    with open_llm(shelf.base, device="cpu", max_loras=1) as llm:
        executor: Any = llm._session.model.executor
        executor._runner.adapters.watch_room(16, lambda: free[0])
        asked = [own, None, shelf.requests[0]]
        outputs = llm.generate(
            PROMPTS, GREEDY, use_tqdm=False, lora_request=asked, on_error="return"
        )
        error = outputs[0].error
        assert isinstance(error, AdapterFailed)
        assert "of its own on the device" in str(error)
        assert [len(one.outputs[0].token_ids) for one in outputs[1:]] == [8, 8]
        free[0] += 1 << 20
        [output] = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False, lora_request=own)
        assert len(output.outputs[0].token_ids) == 8
        free[0] = 0  # it is there, and needs nothing more; nor does one in its place
        llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False, lora_request=[own, other])
