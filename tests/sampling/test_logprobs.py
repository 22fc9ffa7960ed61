from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quire.sampling.logprobs import likeliest, log_probabilities, score_tokens
from quire.sampling_params import SamplingParams
from tests.sampling.making import entries, make_params, make_sampler, make_start, sample_one

VOCAB = 1500


def make_logits(lines: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(lines, vocab, generator=torch.Generator().manual_seed(6)) * 3


def plain_logprobs(logits: torch.Tensor) -> np.ndarray:
    exact = logits.double().numpy()
    exact = exact - exact.max()
    return exact - math.log(np.exp(exact).sum())


@pytest.mark.parametrize("width", [3.0, 0.01])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 1000, -1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_equal_a_plain_softmax_of_the_raw_logits(
    num_top: int, temperature: float, width: float
) -> None:
    logits = make_logits(1)[0] * width
    params = make_params(temperature=temperature, logprobs=num_top, repetition_penalty=2.0, top_k=9)
    sampled = sample_one(make_sampler(VOCAB, make_start(params=params)), logits)
    expected = plain_logprobs(logits)
    entry, token = entries(sampled.logprobs)[0], int(sampled.tokens[0])
    assert entry.token_id == token
    assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
    assert abs(entry.rank - 1 - int((logits > logits[token]).sum())) <= (width < 1)
    # Neighbours that float32 logprobs cannot tell apart stand in the order of their ids.
    order = np.argsort(-torch.log_softmax(logits, 0).numpy(), kind="stable")
    count = VOCAB if num_top == -1 else num_top
    assert entry.top_ids.tolist() == order[:count].tolist()
    assert entry.top_ids.dtype == np.int32
    assert entry.top_logprobs.dtype == np.float32
    assert np.allclose(entry.top_logprobs, expected[order[:count]], atol=1e-5)


def test_lines_with_different_wishes_each_get_their_own() -> None:
    logits = make_logits(4)
    wishes = [None, 0, 20, 3]
    starts = [
        make_start(row, SamplingParams(temperature=0, logprobs=wish))
        for row, wish in enumerate(wishes)
    ]
    rows = np.arange(4, dtype=np.int32)
    sampled = make_sampler(VOCAB, *starts).sample(logits, rows, np.ones(4, np.int32), None)
    assert {line: len(entry.top_ids) for line, entry in entries(sampled.logprobs).items()} == {
        1: 0,
        2: 20,
        3: 3,
    }
    for line, entry in entries(sampled.logprobs).items():
        assert entry.rank == 1
        assert entry.logprob == pytest.approx(plain_logprobs(logits[line]).max(), abs=1e-5)


def test_equal_tokens_stand_in_order_and_have_equal_ranks() -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, 2.0, 2.0, 0.0])
    params = SamplingParams(temperature=0, logprobs=4, allowed_token_ids=[2])
    entry = entries(sample_one(make_sampler(6, make_start(params=params)), logits).logprobs)[0]
    assert entry.top_ids.tolist() == [1, 3, 4, 0]
    assert (entry.token_id, entry.rank) == (2, 4)


def test_more_logprobs_than_likely_tokens_are_still_given() -> None:
    logits = torch.full((50,), -math.inf)
    logits[[3, 9]] = torch.tensor([1.0, 2.0])
    params = SamplingParams(temperature=0, logprobs=4)
    entry = entries(sample_one(make_sampler(50, make_start(params=params)), logits).logprobs)[0]
    assert entry.top_ids.tolist() == [9, 3, 0, 1]
    assert entry.top_logprobs[2] == -math.inf


def test_wanted_token_ids_come_back_with_the_sampled_one() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 5.0])
    outside = SamplingParams(temperature=0, logprobs=2, logprob_token_ids=[2, 0])
    among = SamplingParams(temperature=0, logprobs=2, logprob_token_ids=[2, 3])
    expected = plain_logprobs(logits)
    for params, ids in ((outside, [2, 0]), (among, [2, 3])):
        entry = entries(sample_one(make_sampler(4, make_start(params=params)), logits).logprobs)[0]
        assert entry.top_ids.tolist() == ids
        assert np.allclose(entry.top_logprobs, expected[ids], atol=1e-6)
        assert (entry.token_id, entry.rank) == (3, 1)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("raw_logits", [1.0, 4.0, 2.0]),
        ("raw_logprobs", plain_logprobs(torch.tensor([1.0, 4.0, 2.0])).tolist()),
        # After the bias of 1 and temperature 0.5: [4 8 4], of which top_k = 1 leaves one.
        ("processed_logits", [-math.inf, 8.0, -math.inf]),
        ("processed_logprobs", [-math.inf, 0.0, -math.inf]),
    ],
)
def test_each_mode_shows_its_stage(mode: str, expected: list[float]) -> None:
    params = make_params(temperature=0.5, top_k=1, logprobs=-1, logit_bias={0: 1.0})
    sampler = make_sampler(3, make_start(params=params), mode=mode)
    entry = entries(sample_one(sampler, torch.tensor([1.0, 4.0, 2.0])).logprobs)[0]
    shown = dict(zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True))
    assert [shown[token] for token in range(3)] == pytest.approx(expected)


def test_processed_logprobs_of_a_whole_draw_follow_the_temperature() -> None:
    logits = make_logits(1)[0]
    params = make_params(temperature=0.5, logprobs=5)
    sampler = make_sampler(VOCAB, make_start(params=params), mode="processed_logprobs")
    entry = entries(sample_one(sampler, logits).logprobs)[0]
    expected = plain_logprobs(logits * 2)
    assert entry.logprob == pytest.approx(expected[entry.token_id], abs=1e-5)
    assert np.allclose(entry.top_logprobs, np.sort(expected)[::-1][:5], atol=1e-5)


NONE = torch.empty(1, 0, dtype=torch.int64)  # of other tokens


@pytest.mark.parametrize("num_top", [0, 5, -1])
def test_given_tokens_are_scored_under_the_lines_they_name(num_top: int) -> None:
    values = log_probabilities(make_logits(5))
    lines, tokens = [0, 1, 2, 3, 4, 0, 0, 4], [5, 1400, 0, 7, 7, 30, 5, 2]
    given = torch.tensor(lines[5:]), torch.tensor(tokens)
    made = score_tokens(values, *given, num_top, NONE.expand(len(tokens), 0))
    for i, (line, token) in enumerate(zip(lines, tokens, strict=True)):
        expected = values[line].numpy()
        assert float(made.logprobs[i]) == expected[token]
        assert int(made.ranks[i]) == 1 + int((expected > expected[token]).sum())
        count = VOCAB if num_top == -1 else num_top
        assert made.top_ids[i].tolist() == np.argsort(-expected, kind="stable")[:count].tolist()
        assert made.top_logprobs[i].tolist() == expected[made.top_ids[i]].tolist()


def test_scores_are_bitwise_the_same_in_any_company() -> None:
    logits, tokens = make_logits(9), torch.arange(9)
    whole = score_tokens(log_probabilities(logits), tokens[:0], tokens, 3, NONE.expand(9, 0))
    for i in range(9):
        values = log_probabilities(logits[i : i + 1])
        alone = score_tokens(values, tokens[:0], tokens[i : i + 1], 3, NONE)
        assert torch.equal(alone.logprobs, whole.logprobs[i : i + 1])
        assert torch.equal(alone.top_logprobs, whole.top_logprobs[i : i + 1])


def test_the_whole_vocabulary_stands_in_the_order_of_a_stable_sort() -> None:
    values = torch.randn(5, 3000, generator=torch.Generator().manual_seed(8)) * 3
    values[1] = (values[1] * 2).round() / 2  # many equals, minus zero among them
    values[2, 5:900] = -math.inf
    values[3, 77] = math.nan
    values[4] = 0.25
    expected = values.sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(likeliest(values, -1), expected)
    assert torch.equal(likeliest(values, 2500), expected[:, :2500])
