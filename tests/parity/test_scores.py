"""score_continuations and cached prompt logprobs, against a plain forward pass of Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, ContinuationScore, SamplingParams
from tests.parity.families import OF_EACH_KIND, make_pair

SHARED = [11, 3, 3, 60, 7, 90, 41, 2, 5, 5, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26]
CONTEXTS = [[5], SHARED, [*SHARED, 9, 8], list(range(40)), [*SHARED, 9, 8]]
CONTINUATIONS = [
    [[1], [2, 3]],
    [[4, 5, 6], [4, 5, 7], [8], [8]],
    [list(range(25)), [1, 2]],
    [[3]],
    [[1, 2], [33], list(range(50, 70))],
]


def open_llm(pair: Any, directory: Path, **options: Any) -> LLM:
    pair.oracle.save_pretrained(directory)
    given: dict[str, Any] = {
        "kv_cache_memory_bytes": 4 << 20,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
    }
    given |= {"dtype": "float32", "skip_tokenizer_init": True}
    return LLM(str(directory), **{**given, **options})


@torch.no_grad()
def chances(oracle: Any, text: list[int]) -> torch.Tensor:
    return oracle(torch.tensor([text])).logits[0].float().log_softmax(-1)


def check_score(
    oracle: Any, context: list[int], continuation: list[int], got: ContinuationScore
) -> None:
    at = chances(oracle, [*context, *continuation])[len(context) - 1 : -1]
    wanted = at.gather(1, torch.tensor(continuation)[:, None])[:, 0]
    assert got.num_tokens == len(continuation)
    assert torch.tensor(got.token_logprobs) == pytest.approx(wanted, abs=1e-3)
    assert got.logprob == pytest.approx(float(wanted.sum()), abs=1e-3 * len(continuation))
    if (at.topk(2).values.diff().abs() > 1e-3).all():
        assert got.is_greedy == (at.argmax(1).tolist() == continuation)


@pytest.mark.parametrize("family", OF_EACH_KIND)
def test_scores_equal_a_plain_forward_pass(family: str, tmp_path: Path) -> None:
    pair = make_pair(family)
    after = chances(pair.oracle, SHARED)[-1]
    greedy, is_clear = int(after.argmax()), bool(after.topk(2).values.diff().abs() > 1e-3)
    continuations = [*CONTINUATIONS[:1], [*CONTINUATIONS[1], [greedy]], *CONTINUATIONS[2:]]
    with open_llm(pair, tmp_path) as llm:
        scores = llm.score_continuations(CONTEXTS, continuations, use_tqdm=False)
        pool = llm._session.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks
    assert [len(row) for row in scores] == [len(row) for row in continuations]
    for context, some, row in zip(CONTEXTS, continuations, scores, strict=True):
        for continuation, score in zip(some, row, strict=True):
            check_score(pair.oracle, context, continuation, score)
    assert (scores[1][-1].is_greedy or not is_clear) and not scores[1][0].is_greedy


SETTINGS: list[dict[str, Any]] = [
    {"enable_prefix_caching": False},
    {"max_num_batched_tokens": 16, "max_num_seqs": 2},
    {"block_size": 8},
    {"num_gpu_blocks_override": 6, "max_num_seqs": 6},
]


def test_scores_are_the_same_bits_however_they_are_computed(tmp_path: Path) -> None:
    pair = make_pair("llama")
    found = []
    for options in [{}, *SETTINGS]:
        with open_llm(pair, tmp_path, batch_invariant=True, **options) as llm:
            found.append(llm.score_continuations(CONTEXTS, CONTINUATIONS, use_tqdm=False))
            again = llm.score_continuations(CONTEXTS, CONTINUATIONS, use_tqdm=False)
            assert again == found[-1], "the second call finds its contexts in the cache"
    assert all(one == found[0] for one in found[1:])


def test_prompt_logprobs_are_the_same_bits_however_they_are_computed(tmp_path: Path) -> None:
    pair = make_pair("llama")
    prompts = [[*c, *ids] for c, some in zip(CONTEXTS, CONTINUATIONS, strict=True) for ids in some]
    params = [
        SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=i % 3)
        for i in range(len(prompts))
    ]
    found = []
    for options in [{}, *SETTINGS]:
        with open_llm(pair, tmp_path, batch_invariant=True, **options) as llm:
            for _ in range(2):
                outputs = llm.generate(prompts, params, use_tqdm=False)
                found.append([o.prompt_logprobs for o in outputs])
            cached = sum(o.num_cached_tokens or 0 for o in outputs)
            if "num_gpu_blocks_override" not in options:  # so few keep nothing for long
                assert (cached > 0) == options.get("enable_prefix_caching", True)
    assert all(one == found[0] for one in found[1:])
    at = chances(pair.oracle, prompts[3])
    for i, position in enumerate(found[0][3] or []):
        if position is not None:
            token = prompts[3][i]
            assert position[token].logprob == pytest.approx(float(at[i - 1, token]), abs=1e-3)


QUESTIONS = [
    ("Question: What is the largest planet of the solar system?\nAnswer:", ["Mars", "Jupiter"]),
    ("She opened the umbrella because it had started to ", ["rain", "snow heavily", "shine"]),
    ("def add(a, b):\n    return", [" a + b", " a - b", "\n"]),
    ("", ["The", "Once upon a time"]),
    ("Die Hauptstadt von Österreich ist", [" Wien", " Salzburg", " nicht Berlin, sondern Wien."]),
]


# What Transformers gives each token of each continuation, with the default model in fp32.
SCORES = Path(__file__).parent / "scores.json"


def test_scores_of_the_default_model_equal_a_plain_forward_pass(
    default_model: Path, long_mode: bool
) -> None:
    """One of Transformers that was written down; with --long one of today as well."""
    contexts = [context for context, _ in QUESTIONS]
    options = [[" " + o if c.endswith(":") else o for o in some] for c, some in QUESTIONS]
    with LLM(str(default_model), dtype="float32") as llm:
        scores = llm.score_continuations(contexts, options, use_tqdm=False)
        encode = llm.get_tokenizer().encode
        prefix = llm.get_tokenizer().bos_token_id
    for row, wanted in zip(scores, json.loads(SCORES.read_text()), strict=True):
        for score, (logprobs, is_greedy) in zip(row, wanted, strict=True):
            assert score.token_logprobs == pytest.approx(logprobs, abs=1e-3)
            assert score.is_greedy == is_greedy
    if not long_mode:
        return
    from tests.parity.make_oracle import load_model

    oracle = load_model(default_model).eval()
    for context, some, row in zip(contexts, options, scores, strict=True):
        own = encode(context.rstrip()) if context else []
        for option, score in zip(some, row, strict=True):
            ids = encode(context + option)[len(own) :]
            check_score(oracle, own or [prefix], ids, score)
