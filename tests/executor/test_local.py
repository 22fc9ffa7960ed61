"""LocalExecutor: from a config and weights to results, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.errors import CorruptModel, EngineClosed, NotEnoughMemory, NotSupported, UnsupportedModel
from quire.executor import memory
from quire.executor.cpu.local import LocalExecutor
from quire.executor.executor import Executor
from quire.executor.shelf import Tower
from quire.layers.tp import TensorParallel
from quire.params.row_sampling import RowSampling
from quire.ranks.shares import of_rank
from quire.sampling_params import SamplingParams
from quire.step import Assigned, Slice, StepPlan
from quire.weights.load import dummy_weights
from tests.executor.harness import ints, row_start
from tests.executor.test_invariance import spec_of
from tests.ranks.threads import on_ranks
from tests.specs import small_config

SPEC = spec_of()


def started(**changes: object) -> tuple[LocalExecutor, int]:
    weights = dummy_weights(SPEC, dtype=torch.float32, device="cpu")
    executor = LocalExecutor(small_config(**changes), SPEC, weights)
    return executor, executor.start().num_blocks


def plan_of(prompt: list[int]) -> StepPlan:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2)
    return StepPlan(
        starts=(row_start(0, prompt, sampling=RowSampling.of(params)),),
        assigned=Assigned(ints(0, 0), ints(0, 1), ints(3, 1)),
        prefill=(Slice(0, 0, ints(*prompt), (0,)),),
    )


def test_ranks_have_their_tower_before_the_first_plan() -> None:
    """A plan that takes as long as reading a tower does is taken for stuck."""
    made: list[int] = []

    def work(tp: TensorParallel) -> None:
        spec, tower = of_rank(SPEC, tp.share), cast(Tower, object())

        def read() -> dict[str, Tensor]:
            return dummy_weights(SPEC, dtype=torch.float32, device="cpu", share=tp.share)

        def load() -> Tower:
            made.append(tp.share.rank)
            return tower

        config = small_config()
        executor = LocalExecutor(config, spec, read(), read_again=read, tower=load, tp=tp)
        executor.start()
        executor.sleep(keep_weights=False)
        executor.wake_up("weights")

    on_ranks(2, work)
    assert sorted(made) == [0, 0, 1, 1]
    on_ranks(1, work)
    assert len(made) == 4  # alone, it is made for the first that needs it


def test_a_plan_is_computed_with_the_real_sampler() -> None:
    executor: Executor
    executor, num_blocks = started()
    assert num_blocks == 64
    result = executor.submit(plan_of([1, 2, 3, 4, 5])).result()
    assert result.counts.tolist() == [1]
    (block,) = result.logprobs
    assert block.lines.tolist() == [0] and block.scores.ranks.tolist() == [1]
    assert block.scores.token_ids[0] == result.tokens[0, 0] == block.scores.top_ids[0, 0]
    executor.close()


def test_reset_frees_every_row() -> None:
    executor, _ = started()
    long = Assigned(*(np.arange(40, dtype=np.int32) % n for n in (1, 40, 40)))
    executor.submit(StepPlan(starts=(row_start(0, [1]),), assigned=long))
    executor.reset()
    before = executor.submit(plan_of([1, 2, 3])).result()
    executor.reset()
    after = executor.submit(plan_of([1, 2, 3])).result()
    assert np.array_equal(before.tokens, after.tokens)


def test_the_weights_are_taken_over() -> None:
    weights = dummy_weights(SPEC, dtype=torch.float32, device="cpu")
    LocalExecutor(small_config(), SPEC, weights).start()
    assert not weights


def test_it_cannot_be_used_before_start_nor_after_close() -> None:
    executor = LocalExecutor(small_config(), SPEC, {})
    with pytest.raises(EngineClosed):
        executor.submit(StepPlan())
    executor, _ = started()
    executor.close()
    executor.close()
    with pytest.raises(EngineClosed):
        executor.submit(StepPlan())
    with pytest.raises(EngineClosed):
        executor.start()


def test_a_missing_or_misshapen_weight_is_named() -> None:
    weights = dummy_weights(SPEC, dtype=torch.float32, device="cpu")
    del weights["layers.1.mlp.down.weight"]
    with pytest.raises(CorruptModel, match=r"layers\.1\.mlp\.down\.weight.*missing"):
        LocalExecutor(small_config(), SPEC, weights).start()
    weights = dummy_weights(SPEC, dtype=torch.float32, device="cpu")
    weights["norm.weight"] = torch.ones(3)
    with pytest.raises(CorruptModel, match=r"norm\.weight.*\[3\], not \[96\]"):
        LocalExecutor(small_config(), SPEC, weights).start()


def test_an_unknown_family_names_the_known_ones() -> None:
    spec = dataclasses.replace(SPEC, family="mamba")
    with pytest.raises(UnsupportedModel, match="mamba.*llama, mistral, qwen2, qwen3"):
        LocalExecutor(small_config(), spec, {}).start()


def test_another_kv_dtype_is_refused() -> None:
    with pytest.raises(NotSupported, match="fp8"):
        LocalExecutor(small_config(kv_cache_dtype="fp8"), SPEC, {})


def test_the_pool_is_a_quarter_of_free_memory_up_to_four_gib() -> None:
    config = small_config(num_blocks=None)
    size = memory.block_bytes(SPEC, 4, torch.float32)
    assert size == 4 * 2 * 2 * 2 * 32 * 4
    assert memory.num_blocks(config, SPEC, torch.float32, 40 * size) == 10
    assert memory.num_blocks(config, SPEC, torch.float32, 1 << 50) == (4 << 30) // size


def test_the_caller_may_size_the_pool() -> None:
    size = memory.block_bytes(SPEC, 4, torch.float32)
    given = small_config(num_blocks=None, kv_cache_memory_bytes=7 * size + 1)
    assert memory.num_blocks(given, SPEC, torch.float32, 0) == 7
    assert memory.num_blocks(small_config(num_blocks=5), SPEC, torch.float32, 0) == 5


def test_too_little_memory_is_said_with_numbers() -> None:
    with pytest.raises(NotEnoughMemory, match=r"kv_cache_memory_bytes to at least 4096"):
        memory.num_blocks(small_config(num_blocks=None), SPEC, torch.float32, 1000)


def test_a_pool_has_room_for_a_text_in_every_group_of_layers() -> None:
    """Else it starts, and refuses every prompt."""
    attentions = (
        dataclasses.replace(SPEC.layers[0].attention, window=window) for window in (None, 8) * 2
    )
    layers = tuple(dataclasses.replace(SPEC.layers[0], attention=one) for one in attentions)
    spec = dataclasses.replace(SPEC, layers=layers)
    config = small_config(num_blocks=None)
    groups = memory.groups_of(config, spec)
    size = memory.block_bytes(spec, config.block_size, torch.float32, groups)
    assert len(groups) == 2
    for given in (size, 2 * size - 1):
        few = small_config(num_blocks=None, kv_cache_memory_bytes=given)
        with pytest.raises(NotEnoughMemory, match=f"text 2 of them.*at least {2 * size}"):
            memory.num_blocks(few, spec, torch.float32, 0)
    with pytest.raises(NotEnoughMemory, match="num_gpu_blocks_override to at least 2, or leave"):
        memory.num_blocks(small_config(num_blocks=1), spec, torch.float32, 0)
    enough = small_config(num_blocks=None, kv_cache_memory_bytes=2 * size)
    assert memory.num_blocks(enough, spec, torch.float32, 0) == 2


def test_a_pool_beyond_the_machine_is_an_error_of_ours() -> None:
    with pytest.raises(NotEnoughMemory, match="KV blocks"):
        memory.make_cache(SPEC, 1 << 50, 4, torch.float32, torch.device("cpu"))
