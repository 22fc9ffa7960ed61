"""Logprobs of samples and prompts through LLM, against a plain softmax of Transformers' logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, FlatLogprobs, InvalidParams, Logprob, SamplingParams
from tests.parity.families import make_pair

PROMPTS = [[5, 9, 33, 60, 2, 71, 8], list(range(40)), [7]]


@pytest.fixture(scope="module")
def pair() -> Any:
    return make_pair("llama3 rope")


@pytest.fixture(scope="module")
def llm(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("model")
    pair.oracle.save_pretrained(directory)
    with LLM(
        str(directory), dtype="float32", skip_tokenizer_init=True, kv_cache_memory_bytes=4 << 20,
        max_num_batched_tokens=16, max_num_seqs=8,
    ) as made:  # fmt: skip
        yield made


@torch.no_grad()
def chances(pair: Any, text: list[int]) -> torch.Tensor:
    return pair.oracle(torch.tensor([text])).logits[0].float().log_softmax(-1)


CLOSE = 1e-4  # how far two correct logprobs of one token may lie apart


def check(position: dict[int, Logprob], at: torch.Tensor, token: int, k: int) -> None:
    """The token and the k likeliest, with their values and ranks. Tokens whose chances are within
    rounding of each other may stand in either order, also where the list is cut."""
    count = len(at) if k == -1 else k
    assert sorted(e.rank or 0 for e in position.values() if (e.rank or 0) <= count) == list(
        range(1, count + 1)
    )
    assert set(position) == {i for i, e in position.items() if (e.rank or 0) <= count} | {token}
    for i, entry in position.items():
        assert abs(entry.logprob - float(at[i])) < CLOSE
        surely_above = int((at > at[i] + 2 * CLOSE).sum())
        perhaps_above = int((at > at[i] - 2 * CLOSE).sum()) - 1  # without itself
        assert entry.rank is not None and surely_above < entry.rank <= perhaps_above + 1
        assert entry.decoded_token is None


def test_the_check_sees_wrong_ranks_and_wrong_tokens() -> None:
    at = torch.tensor([-1.0, -2.0, -2.00001, -4.0])
    logprobs = {i: Logprob(float(at[i]), i + 1, None) for i in range(3)}
    check(logprobs, at, 2, 3)
    tied = {0: logprobs[0], 1: Logprob(-2.0, 3, None), 2: Logprob(-2.0, 2, None)}
    check(tied, at, 1, 3)
    check({0: logprobs[0], 2: Logprob(-2.0, 2, None)}, at, 0, 2)
    for wrong in (
        {0: Logprob(-1.0, 2, None), 1: Logprob(-2.0, 1, None)},
        {0: logprobs[0], 3: Logprob(-4.0, 2, None)},
        {0: logprobs[0]},
    ):
        with pytest.raises(AssertionError):
            check(wrong, at, 0, 2)


@pytest.mark.parametrize("k", [0, 5, 20, 90, -1])
def test_sample_logprobs_equal_a_plain_softmax(llm: LLM, pair: Any, k: int) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=6, logprobs=k, seed=3, ignore_eos=True)
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params, use_tqdm=False), strict=True):
        answer = output.outputs[0]
        at = chances(pair, [*prompt, *answer.token_ids])
        assert answer.logprobs is not None and len(answer.logprobs) == 6
        for i, token in enumerate(answer.token_ids):
            check(answer.logprobs[i], at[len(prompt) + i - 1], token, k)
        summed = sum(answer.logprobs[i][t].logprob for i, t in enumerate(answer.token_ids))
        assert answer.cumulative_logprob == pytest.approx(summed)


@pytest.mark.parametrize("k", [0, 3, -1])
def test_prompt_logprobs_equal_a_plain_softmax_whatever_is_cached(
    llm: LLM, pair: Any, k: int
) -> None:
    llm.generate(PROMPTS, SamplingParams(max_tokens=1), use_tqdm=False)  # fills the cache
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=k)
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params, use_tqdm=False), strict=True):
        at = chances(pair, prompt)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(prompt)
        assert output.prompt_logprobs[0] is None
        for i in range(1, len(prompt)):
            position = output.prompt_logprobs[i]
            assert position is not None
            check(position, at[i - 1], prompt[i], k)


@pytest.mark.parametrize(("k", "start"), [(None, 0), (None, 33), (2, 0), (2, 33)])
def test_named_tokens_of_a_prompt_equal_a_plain_softmax(
    llm: LLM, pair: Any, k: int | None, start: int
) -> None:
    """In chunks of 16 tokens, behind a cached beginning, in lines of different lengths."""
    prompt = PROMPTS[1]
    llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)  # fills the cache
    ids = [[(7 * i + j) % 90 for j in range(i % 4)] for i in range(start, 39)]
    params = SamplingParams(
        n=2, max_tokens=2, seed=1, prompt_logprobs=k, prompt_logprob_token_ids=ids,
        prompt_logprob_start=start or None,
    )  # fmt: skip
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    found, at = output.prompt_token_id_logprobs, chances(pair, prompt)
    assert found is not None and found.shape == (39 - start, 3) and found.dtype == np.float32
    for line, tokens, expected in zip(found, ids, at[start:], strict=False):
        assert line[: len(tokens)].tolist() == pytest.approx(expected[tokens].tolist(), abs=CLOSE)
        assert all(value == -np.inf for value in line[len(tokens) :])
    assert output.num_cached_tokens == (32 if start and k is None else 0)
    if k is None:
        assert output.prompt_logprobs is None
        return
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == 40
    for i, position in enumerate(output.prompt_logprobs[1:]):
        check(position or {}, at[i], prompt[i + 1], k)


def test_lines_of_named_tokens_that_are_not_the_prompts_are_refused(llm: LLM) -> None:
    params = SamplingParams(prompt_logprob_token_ids=[[1]] * 6, prompt_logprob_start=1)
    with pytest.raises(InvalidParams, match="6 lines, and the prompt 7 tokens.* 5 in all"):
        llm.generate([PROMPTS[0]], params, use_tqdm=False)


def test_without_asking_there_are_none(llm: LLM) -> None:
    (output,) = llm.generate([PROMPTS[0]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.prompt_logprobs is None and output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None


def test_flat_logprobs_and_chosen_ids(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, logprobs=2, flat_logprobs=True, seed=1)
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    assert isinstance(output.outputs[0].logprobs, FlatLogprobs)
    params = SamplingParams(max_tokens=3, logprob_token_ids=[4, 80], seed=1)
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    answer = output.outputs[0]
    assert answer.logprobs is not None
    for token, position in zip(answer.token_ids, answer.logprobs, strict=True):
        assert set(position or ()) == {4, 80, token}


def test_samples_share_the_prompts_logprobs(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=2, prompt_logprobs=0, seed=1)
    (output,) = llm.generate([PROMPTS[1]], params, use_tqdm=False)
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == 40
