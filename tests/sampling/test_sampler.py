from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.sampling import draw, scan, truncation
from quire.sampling import sampler as sampler_module
from quire.sampling.sampler import Sampler
from quire.sampling_params import SamplingParams
from quire.step import Masks
from tests.sampling.making import (
    entries,
    keys_for,
    make_params,
    make_sampler,
    make_start,
    plain_draw,
    plain_edit,
    sample_one,
)

VOCAB = 30
TOKENS = st.integers(0, VOCAB - 1)
EDITS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.3, 2.0]),
        "frequency_penalty": st.sampled_from([-1.5, 0.7, 2.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.4, 1.9]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-30.0, 0.5, 7.25]), min_size=9),
        "allowed_token_ids": st.lists(TOKENS, min_size=1, max_size=25, unique=True),
        "min_tokens": st.integers(0, 8),
        "bad_words": st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=8),
    },
)


def processed(logits: torch.Tensor, sampler: Sampler, row: int, position: int) -> np.ndarray | None:
    """The logits after all edits, read from the answer of processed_logits mode."""
    sampled = sample_one(sampler, logits, row, position)
    if sampled.failed:
        return None
    entry = entries(sampled.logprobs)[0]
    values = np.empty(len(entry.top_ids), np.float32)
    values[entry.top_ids] = entry.top_logprobs
    return values


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fields=EDITS,
    prompt=st.lists(TOKENS, min_size=1, max_size=20),
    output=st.lists(TOKENS, max_size=10),
    stop_ids=st.lists(TOKENS, max_size=3),
)
def test_edits_equal_a_plain_one_at_a_time_account(
    seed: int, fields: dict[str, Any], prompt: list[int], output: list[int], stop_ids: list[int]
) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    params = make_params(temperature=0, logprobs=-1, max_tokens=99, **fields)
    start = make_start(3, params, prompt=prompt, output=output, stop_ids=tuple(stop_ids))
    sampler = make_sampler(VOCAB, start, mode="processed_logits")
    expected = plain_edit(logits.numpy(), params, prompt, output, stop_ids)
    got = processed(logits, sampler, 3, len(prompt) + len(output))
    if not np.isfinite(expected).any():
        assert got is None
        return
    assert got is not None
    assert np.array_equal(got, expected)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), fields=EDITS, temperature=st.sampled_from([0.0, 1.0]))
def test_history_grows_with_every_token_drawn(
    seed: int, fields: dict[str, Any], temperature: float
) -> None:
    """Two rows side by side, each token against a plain account of all that came before."""
    generator = torch.Generator().manual_seed(seed)
    params = make_params(temperature=temperature, max_tokens=99, **fields)
    prompts = [[1, 2, 2], [5]]
    outputs: list[list[int]] = [[], []]
    sampler = make_sampler(
        VOCAB,
        *(make_start(row, params, seed=row, prompt=prompts[row], stop_ids=(3,)) for row in (0, 1)),
    )
    for _ in range(8):
        logits = torch.randn(2, VOCAB, generator=generator) * 2
        positions = np.asarray([len(prompts[row]) + len(outputs[row]) for row in (0, 1)], np.int32)
        sampled = sampler.sample(logits, np.asarray([0, 1], np.int32), positions, None)
        for row in (0, 1):
            edited = plain_edit(logits[row].numpy(), params, prompts[row], outputs[row], [3])
            if not np.isfinite(edited).any():
                assert row in sampled.failed
                return
            expected = int(edited.argmax())
            if temperature:
                keys = keys_for([row], position=int(positions[row]))
                expected = int(plain_draw(torch.from_numpy(edited)[None], keys))
            assert sampled.tokens[row] == expected
            outputs[row].append(expected)


def test_rows_with_lists_come_and_go_in_pieces_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked up for one piece is not taken for another, or for the row's next owner."""
    monkeypatch.setattr(sampler_module, "_PIECE", 2 * VOCAB)  # two lines at a time
    made = random.Random(5)
    generator, sampler = torch.Generator().manual_seed(5), make_sampler(VOCAB)

    def half(first: int) -> SamplingParams:
        """Behind any token every other one is forbidden."""
        pairs = [[token, last] for token in range(VOCAB) for last in range(first, VOCAB, 2)]
        return make_params(temperature=0, bad_words=pairs)

    shared = half(0)
    lists: list[Callable[[], SamplingParams]] = [
        lambda: make_params(temperature=0, allowed_token_ids=made.sample(range(VOCAB), 20)),
        lambda: make_params(temperature=0, allowed_token_ids=made.sample(range(VOCAB), 4)),
        lambda: make_params(temperature=0, logit_bias={made.randrange(VOCAB): 9.0}),
        lambda: make_params(temperature=0, logit_bias={token: token * 0.3 for token in range(20)}),
        lambda: shared,
        lambda: half(1),
        lambda: make_params(temperature=0),
    ]
    params: dict[int, SamplingParams] = {}
    outputs: dict[int, list[int]] = {}
    rows = np.arange(8, dtype=np.int32)
    for step in range(24):
        for row in rows.tolist() if step == 0 else made.sample(range(8), step % 3):
            params[row], outputs[row] = made.choice(lists)(), []
            sampler.start(make_start(row, params[row]))
        logits = torch.randn(8, VOCAB, generator=generator)
        positions = np.array([1 + len(outputs[row]) for row in rows.tolist()], np.int32)
        tokens = sampler.sample(logits, rows, positions, None).tokens.tolist()
        for row, token in enumerate(tokens):
            edited = plain_edit(logits[row].numpy(), params[row], [1], outputs[row])
            assert token == int(edited.argmax())
            outputs[row].append(token)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_preempted_row_restarted_with_its_history_draws_the_same_tokens(
    temperature: float,
) -> None:
    params = make_params(
        temperature=temperature,
        repetition_penalty=1.4,
        frequency_penalty=0.5,
        min_tokens=6,
        max_tokens=50,
        bad_words=[[4, 5], [7], [1, 2, 3], [8, 8]],
        top_p=0.95,
    )
    prompt = [9, 4, 1]
    logits = torch.randn(20, 12, generator=torch.Generator().manual_seed(8)) * 2

    def run(interrupt_every: int) -> list[int]:
        output: list[int] = []
        sampler = make_sampler(12, make_start(0, params, prompt=prompt, stop_ids=(0,)))
        row = 0
        for step in range(20):
            if interrupt_every and step and step % interrupt_every == 0:
                sampler.end(np.asarray([row], np.int32))
                row += 1
                again = make_start(row, params, prompt=prompt, output=output, stop_ids=(0,))
                sampler.start(again)
            output += sample_one(sampler, logits[step], row, 3 + step).tokens.tolist()
        return output

    undisturbed = run(0)
    assert undisturbed == run(1) == run(3) == run(7)
    assert len(set(undisturbed)) > 3


def test_the_order_of_operations_shows_where_it_matters() -> None:
    params = make_params(
        temperature=0.5,
        logprobs=-1,
        logit_bias={0: 1.0, 1: 1.0, 2: -3.0, 3: 50.0},
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        presence_penalty=0.5,
        allowed_token_ids=[0, 1, 2],
    )
    start = make_start(params=params, prompt=[0, 2], output=[1, 1])
    sampler = make_sampler(4, start, mode="processed_logits")
    values = processed(torch.tensor([3.0, 5.0, 2.0, 9.0]), sampler, 0, 4)
    assert values is not None
    # Token 0: (3 + 1) / 2, then / 0.5. Token 1: ((5 + 1) / 2 - 2 * 1 - 0.5) / 0.5.
    # Token 2: (2 - 3) * 2 / 0.5. Token 3 is not allowed, whatever its bias.
    assert values.tolist() == [4.0, 1.0, -4.0, -math.inf]


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    sampler = make_sampler(6, make_start(params=SamplingParams(temperature=0)))
    logits = torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0, 0.0])
    assert sample_one(sampler, logits).tokens.tolist() == [1]
    assert sample_one(sampler, logits.bfloat16()).tokens.tolist() == [1]


def test_no_stop_token_comes_before_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, max_tokens=9)
    sampler = make_sampler(5, make_start(params=params, prompt=[1, 1], stop_ids=(2, 4)))
    logits = torch.tensor([0.0, 1.0, 9.0, 2.0, 8.0])
    drawn = [sample_one(sampler, logits, position=place).tokens.item() for place in range(2, 7)]
    assert drawn == [3, 3, 3, 2, 2]


def test_what_a_models_files_suppress_never_comes_or_not_first() -> None:
    params = SamplingParams(temperature=0, logit_bias={2: 50.0})
    params._suppressed_token_ids = ((2,), (4,))  # never, and not as the first output
    sampler = make_sampler(5, make_start(params=params, prompt=[1, 1]))
    logits = torch.tensor([0.0, 1.0, 9.0, 2.0, 8.0])
    drawn = [sample_one(sampler, logits, position=place).tokens.item() for place in range(2, 5)]
    assert drawn == [3, 4, 4]


def test_only_the_last_token_of_a_matching_bad_word_is_forbidden() -> None:
    params = make_params(temperature=0, bad_words=[[4, 5, 6], [2]], max_tokens=9)
    logits = torch.tensor([0.0, 1.0, 9.0, 3.0, 4.0, 5.0, 8.0])

    def first(prompt: list[int], output: list[int]) -> int:
        sampler = make_sampler(7, make_start(params=params, prompt=prompt, output=output))
        position = len(prompt) + len(output)
        return int(sample_one(sampler, logits, position=position).tokens[0])

    assert first([1], []) == 6
    assert first([1], [4, 5]) == 5
    assert first([1], [4, 5, 0]) == 6
    assert first([1], [5]) == 6
    # The prompt is the user's; only what the model says is judged.
    assert first([1, 4, 5], []) == 6
    assert first([1, 4], [5]) == 6


def test_bad_words_follow_the_tokens_that_are_drawn() -> None:
    params = make_params(temperature=0, bad_words=[[1, 1, 1]], max_tokens=9)
    sampler = make_sampler(3, make_start(params=params))
    logits = torch.tensor([0.0, 9.0, 1.0])
    drawn = [sample_one(sampler, logits, position=place).tokens.item() for place in range(1, 8)]
    assert drawn == [1, 1, 2, 1, 1, 2, 1]


def test_masks_allow_exactly_the_tokens_whose_bit_is_set() -> None:
    vocab = 70
    sampler = make_sampler(
        vocab, *(make_start(row, SamplingParams(temperature=0)) for row in (4, 5, 6))
    )
    logits = torch.arange(vocab, dtype=torch.float32).expand(3, -1)
    bits = np.zeros((2, 3), np.uint32)
    bits[0, 31 // 32] |= np.uint32(1) << np.uint32(31)
    bits[0, 0] |= np.uint32(1)
    bits[1, 2] |= np.uint32(1) << np.uint32(64 % 32)
    masks = Masks(np.asarray([6, 4], np.int32), bits)
    sampled = sampler.sample(
        logits, np.asarray([4, 5, 6], np.int32), np.asarray([1, 1, 1], np.int32), masks
    )
    assert sampled.tokens.tolist() == [64, 69, 31]
    assert logits[0, 69] == 69  # the caller's logits are not written to


def test_a_mask_narrower_than_the_vocabulary_allows_none_of_the_rest() -> None:
    sampler = make_sampler(40, make_start(params=SamplingParams(temperature=0)))
    masks = Masks(np.asarray([0], np.int32), np.asarray([[0b1010]], np.uint32))
    sampled = sample_one(sampler, torch.arange(40.0), masks=masks)
    assert sampled.tokens.tolist() == [3]


def test_thousands_of_allowed_tokens_and_biases_are_all_honoured() -> None:
    vocab = 6000
    allowed = list(range(1000, 5000))
    bias = dict.fromkeys(range(3000), 1.0)
    params = SamplingParams(temperature=0, allowed_token_ids=allowed, logit_bias=bias)
    sampler = make_sampler(vocab, make_start(params=params))
    logits = torch.zeros(vocab)
    logits[5500], logits[500], logits[4999], logits[2999] = 99.0, 99.0, 5.0, 4.5
    assert sample_one(sampler, logits).tokens.tolist() == [2999]


def test_the_siblings_of_a_prompt_draw_differently_and_repeatably() -> None:
    logits = torch.zeros(8, 500)
    rows = np.arange(8, dtype=np.int32)
    starts = [make_start(row, SamplingParams(n=8), seed=4, sample=row) for row in range(8)]
    positions = np.ones(8, np.int32)
    first = make_sampler(500, *starts).sample(logits, rows, positions, None).tokens.tolist()
    again = make_sampler(500, *starts).sample(logits, rows, positions, None).tokens.tolist()
    assert first == again
    assert len(set(first)) > 5


def test_a_row_that_ends_leaves_nothing_to_the_next() -> None:
    heavy = make_params(
        temperature=0.5,
        top_k=2,
        logprobs=3,
        presence_penalty=2.0,
        logit_bias={1: 50.0},
        bad_words=[[2], [0, 3]],
        allowed_token_ids=[1, 2],
        min_tokens=5,
        max_tokens=9,
    )
    sampler = make_sampler(6, make_start(0, heavy, stop_ids=(4,)))
    logits = torch.tensor([0.0, 1.0, 9.0, 3.0, 4.0, 5.0])
    assert sample_one(sampler, logits).tokens.tolist() == [1]
    sampler.end(np.asarray([0], np.int32))
    sampler.start(make_start(0, SamplingParams(temperature=0)))
    after = sample_one(sampler, logits)
    assert (after.tokens.tolist(), after.logprobs) == ([2], ())
    # Started again without an end in between: the new start counts alone.
    sampler.start(make_start(0, heavy))
    sampler.start(make_start(0, SamplingParams(temperature=0)))
    assert sample_one(sampler, logits).tokens.tolist() == [2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_line_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logprobs=2, top_p=0.9)
    starts = [make_start(row, params, seed=row) for row in range(4)]
    rows, positions = np.arange(4, dtype=np.int32), np.ones(4, np.int32)
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    sound = make_sampler(300, *starts).sample(logits, rows, positions, None)
    broken = logits.clone()
    broken[1, 299] = bad
    broken[2] = -math.inf
    sampled = make_sampler(300, *starts).sample(broken, rows, positions, None)
    assert sound.failed == ()
    assert sampled.failed == (1, 2)
    assert sampled.tokens[[1, 2]].tolist() == [0, 0]
    assert sampled.tokens[[0, 3]].tolist() == sound.tokens[[0, 3]].tolist()
    found = entries(sampled.logprobs)
    assert set(found) == {0, 3}
    assert found[3].logprob == entries(sound.logprobs)[3].logprob


def test_some_tokens_at_minus_infinity_are_no_failure() -> None:
    logits = torch.full((50,), -math.inf)
    logits[7] = -3.0
    for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=5)):
        sampled = sample_one(make_sampler(50, make_start(params=params)), logits)
        assert (sampled.tokens.tolist(), sampled.failed) == ([7], ())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_constraints_leave_no_token_fails(temperature: float) -> None:
    params = make_params(temperature=temperature, allowed_token_ids=[2], bad_words=[[2]])
    starts = [make_start(0, params), make_start(1, SamplingParams(temperature=0))]
    sampled = make_sampler(4, *starts).sample(
        torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2),
        np.asarray([0, 1], np.int32),
        np.asarray([1, 1], np.int32),
        None,
    )
    assert (sampled.failed, sampled.tokens.tolist()) == ((0,), [0, 3])


def test_every_float_type_of_logits_is_taken() -> None:
    logits = torch.tensor([0.5, 2.0, -1.0, 1.0])
    params = make_params(temperature=0.8, presence_penalty=0.5, top_k=3, logprobs=2)
    drawn = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        sampled = sample_one(make_sampler(4, make_start(params=params)), logits.to(dtype))
        drawn.add((sampled.tokens.item(), entries(sampled.logprobs)[0].logprob))
    assert len(drawn) == 1


def test_columns_past_the_vocabulary_are_never_drawn() -> None:
    logits = torch.tensor([0.0, 1.0, 9.0, 99.0])
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0.01)):
        sampler = make_sampler(3, make_start(params=params))
        assert sample_one(sampler, logits).tokens.tolist() == [2]


def test_it_works_inside_and_outside_of_inference_mode() -> None:
    params = make_params(presence_penalty=1.0, bad_words=[[1, 2], [1, 1, 1]], temperature=0)
    sampler = make_sampler(6)
    logits = torch.randn(6)
    with torch.inference_mode():
        sampler.start(make_start(0, params, prompt=[1]))
        sample_one(sampler, logits.clone())
    for position in range(2, 80):
        sample_one(sampler, logits, position=position)
    sampler.start(make_start(0, params, prompt=[1]))
    with torch.inference_mode():
        sample_one(sampler, logits.clone())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_a_masked_line_draws_what_the_allowed_tokens_alone_would(temperature: float) -> None:
    """Lines that follow a grammar draw from all tokens first; nobody may notice."""
    rng = np.random.default_rng(5)
    vocab, lines = 300, 40
    starts = [make_start(i, SamplingParams(temperature=temperature), seed=i) for i in range(lines)]
    rows = np.arange(lines, dtype=np.int32)
    logits = torch.from_numpy(rng.normal(size=(lines, vocab)).astype("f4") * 3)
    allowed = rng.random((lines, vocab)) < rng.choice([0.02, 0.5, 0.98], (lines, 1))
    allowed[:, 7] = True
    packed = np.packbits(np.pad(allowed, ((0, 0), (0, 20))), axis=1, bitorder="little")
    masks = Masks(rows, np.ascontiguousarray(packed).view(np.uint32))
    found = make_sampler(vocab, *starts).sample(logits, rows, rows + 1, masks)
    only = logits.masked_fill(~torch.from_numpy(allowed), -torch.inf)
    expected = make_sampler(vocab, *starts).sample(only, rows, rows + 1, None)
    assert found.tokens.tolist() == expected.tokens.tolist()
    free = make_sampler(vocab, *starts).sample(logits, rows, rows + 1, None)
    same = (free.tokens == found.tokens).sum().item()
    assert 0 < same < lines, "some draws are meant to be refused, and some not"


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_without_a_compiler_the_same_tokens_are_drawn(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, logits = 6000, torch.randn(20, 6000, generator=torch.Generator().manual_seed(2)) * 2
    limits: tuple[dict[str, Any], ...] = (
        {"top_k": 3000},
        {"top_p": 0.98},
        {"top_k": 7},
        {"min_p": 1e-4},
        {},
    )
    drawn = []
    for is_native in (True, False):
        for module in () if is_native else (scan, draw, truncation):
            monkeypatch.setattr(module, "can_search", lambda scores: False)
        starts = [
            make_start(row, make_params(temperature=1.5, seed=row, **limits[row % 5]))
            for row in range(20)
        ]
        rows = np.arange(20, dtype=np.int32)
        sampler = make_sampler(vocab, *starts, mode=mode)
        drawn.append(sampler.sample(logits.clone(), rows, rows + 9, None).tokens.tolist())
    assert drawn[0] == drawn[1] and len({*drawn[0]}) > 10
