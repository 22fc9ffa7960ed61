"""With batch_invariant=True the bits of a row depend on its text alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.backends.cpu.invariant import InvariantKernels, agreeing
from quire.backends.cpu.native.library import library
from quire.backends.ops import HeadShape
from quire.errors import NotSupported
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights
from tests.executor.harness import Drive, make_runner
from tests.specs import small_spec

NUM_BLOCKS = 512


def spec_of(**changes: object) -> ModelSpec:
    facts = {"vocab_size": 200, "hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
    return small_spec(**{**facts, "num_heads": 6, "tied_embeddings": True, **changes})


def loud(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights large enough that attention is far from uniform."""
    return {name: w * 8 if w.dim() == 2 else w for name, w in weights.items()}


def texts_of(seed: int) -> tuple[list[list[int]], list[int]]:
    rng = random.Random(seed)
    texts = [[rng.randrange(200) for _ in range(rng.choice([9, 40, 150, 290]))] for _ in range(7)]
    return texts, [rng.randint(1, len(text) - 1) for text in texts]


def without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.backends.cpu.native.kernels.library", lambda: None)


def assert_same_bits(
    spec: ModelSpec,
    weights: dict[str, Any],
    block_sizes: tuple[int, ...],
    *,
    guessing: bool = True,
) -> None:
    """Texts in changing company, cut, grouped and guessed otherwise each time."""
    texts, num_prompts = texts_of(1)
    seen: dict[tuple[int, int], Tensor] = {}
    rng = random.Random(0)
    for seed, block_size in enumerate(block_sizes):
        runner, sampler = make_runner(
            spec, weights, block_size=block_size, num_blocks=NUM_BLOCKS, batch_invariant=True
        )
        some = sorted(rng.sample(range(len(texts)), rng.randint(1, len(texts))))
        # A later prompt end turns decode steps into prefill, as resuming after preemption does.
        ends = [rng.randint(num_prompts[i], len(texts[i]) - 1) for i in some]
        drive = Drive(runner, sampler, seed, NUM_BLOCKS, guessing=guessing and seed % 2 == 1)
        made = drive.run([texts[i] for i in some], ends)
        for (row, at), logits in made.items():
            before = seen.setdefault((some[row], at), logits)
            assert torch.equal(before, logits), f"text {some[row]}, position {at}, seed {seed}"
    assert len(seen) > 100


WINDOWS: tuple[int | None, ...] = (50, None)


@pytest.mark.parametrize(
    ("dtype", "windows", "native"),
    [
        pytest.param(torch.float32, (), True, marks=pytest.mark.long),
        (torch.float32, WINDOWS, True),
        pytest.param(torch.bfloat16, (), True, marks=pytest.mark.long),
        (torch.bfloat16, WINDOWS, True),
        (torch.float32, (), False),
        (torch.bfloat16, WINDOWS, False),
    ],
)
def test_every_way_of_cutting_a_text_gives_the_same_bits(
    dtype: torch.dtype,
    windows: tuple[int | None, ...],
    native: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not native:
        without_native_kernels(monkeypatch)
    spec = spec_of(windows=windows)
    weights = loud(dummy_weights(spec, dtype=dtype, device="cpu"))
    assert_same_bits(spec, weights, block_sizes=(16, 4, 12, 32))


STATES: tuple[StatePlan, ...] = (
    DeltaNetPlan(4, 2, 12, 10, 4, NormPlan(1e-5)),
    MambaPlan(6, 2, 10, 14, 4, NormPlan(1e-5), norm_first=True),
    MambaPlan(6, 1, 20, 12, 3, NormPlan(1e-5), factors=(0.5, 1.5, 0.7, 1.2, 0.8)),
    ConvolutionPlan(96, 3, bias=True),
)


@pytest.mark.parametrize(
    ("dtype", "native"),
    [
        (torch.float32, True),
        pytest.param(torch.bfloat16, True, marks=pytest.mark.long),
        pytest.param(torch.float32, False, marks=pytest.mark.long),
    ],
)
def test_states_give_the_same_bits_however_a_text_is_cut(
    dtype: torch.dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from states at the ends of blocks that another text has computed."""
    if not native:
        without_native_kernels(monkeypatch)
    plain = spec_of()
    layers = tuple(replace(plain.layers[0], state=state) for state in STATES)
    spec = replace(plain, layers=(*layers[:2], plain.layers[0], *layers[2:]))
    weights = loud(dummy_weights(spec, dtype=dtype, device="cpu"))
    assert_same_bits(spec, weights, block_sizes=(32, 48, 32), guessing=False)


def test_native_float32_keeps_the_promise_without_being_asked() -> None:
    """Its fast kernels are the same: what the option costs there is nothing."""
    if library() is None:
        pytest.skip("no native kernels here")
    spec = spec_of()
    weights = loud(dummy_weights(spec, dtype=torch.float32, device="cpu"))
    texts, num_prompts = texts_of(1)
    made = []
    for seed in range(3):
        runner, sampler = make_runner(
            spec, weights, num_blocks=NUM_BLOCKS, batch_invariant=seed == 2
        )
        made.append(Drive(runner, sampler, seed, NUM_BLOCKS).run(texts, num_prompts))
    for other in made[1:]:
        shared = made[0].keys() & other.keys()
        assert len(shared) > 100
        assert all(torch.equal(made[0][key], other[key]) for key in shared)


def test_the_fast_torch_kernels_do_not_promise_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were this to fail, the slower set would have lost its purpose."""
    without_native_kernels(monkeypatch)
    spec = spec_of()
    weights = loud(dummy_weights(spec, dtype=torch.float32, device="cpu"))
    texts, num_prompts = texts_of(1)
    made = []
    for seed in range(2):
        runner, sampler = make_runner(spec, weights, num_blocks=NUM_BLOCKS)
        made.append(Drive(runner, sampler, seed, NUM_BLOCKS).run(texts, num_prompts))
    assert any(not torch.equal(made[0][key], made[1][key]) for key in made[0])


def test_numbers_of_rows_that_disagree_are_left_out() -> None:
    x = torch.randn(64, 8)

    def other_bits_below_32(rows: Tensor) -> Tensor:
        return rows * 2 if rows.shape[0] >= 32 else rows * 2 + 1e-6

    assert agreeing(other_bits_below_32, x, (8, 16, 32)) == {32, 64}


def test_places_that_disagree_leave_nothing() -> None:
    x = torch.randn(64, 8)

    def first_row_differs(rows: Tensor) -> Tensor:
        return torch.cat([rows[:1] + 1, rows[1:]])

    assert agreeing(first_row_differs, x, (8, 16)) == set()


def test_a_promise_that_cannot_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = InvariantKernels(HeadShape(2, 1, 8, 16, torch.float32))
    monkeypatch.setattr("quire.backends.cpu.invariant.agreeing", lambda *_: set())
    with pytest.raises(NotSupported, match="batch_invariant"):
        kernels.make_linear(torch.randn(8, 8), None)


def test_batches_are_cut_into_numbers_of_rows_that_agree() -> None:
    kernels = InvariantKernels(HeadShape(2, 1, 8, 16, torch.float32))
    for counts in ({16, 32, 64, 128, 256}, {16, 32, 256}, {64, 256}, {256}):
        kernels.row_counts, kernels.known = frozenset(counts), {(8, 8, False): counts}
        for num_tokens in range(700):
            padded = kernels.padded(num_tokens)
            cut = kernels.cut(padded)
            assert set(cut) <= counts
            assert num_tokens <= padded == sum(cut) < num_tokens + max(counts)
    kernels.row_counts = frozenset({16, 32, 64, 128, 256})
    assert kernels.cut(kernels.padded(300)) == [256, 32, 16]
