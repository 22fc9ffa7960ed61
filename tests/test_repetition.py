"""repetition_detection: an answer ends where its last tokens are the same few over and over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import LLM, RepetitionDetectionParams, SamplingParams
from quire.sampling_params import StructuredOutputsParams
from quire.scheduler.stopping import is_repeating


def test_what_repeats() -> None:
    def found(ids: list[int], most: int, least: int, count: int) -> bool:
        return is_repeating(np.array(ids, np.int32), RepetitionDetectionParams(most, least, count))

    assert found([7, 1, 2, 1, 2, 1, 2], 2, 0, 3) and found([7, 1, 2, 1, 2, 1, 2], 5, 2, 2)
    assert not found([7, 1, 2, 1, 2, 1, 2], 1, 0, 2) and not found([1, 2, 1, 2, 1, 2, 7], 3, 0, 2)
    assert found([4, 4, 4], 1, 1, 3) and not found([4, 4, 4], 2, 2, 2)
    assert not found([4, 4], 1, 0, 3) and not found([], 9, 0, 2)


def expected_length(ids: list[int], most: int, count: int, least_tokens: int) -> int:
    """Where the answer should end: a look at every beginning of it, piece by piece."""
    for length in range(max(1, least_tokens), len(ids)):
        for size in range(1, most + 1):
            pieces = [ids[length - size * (k + 1) : length - size * k] for k in range(count)]
            if size * count <= length and all(piece == pieces[0] for piece in pieces):
                return length
    return len(ids)


@pytest.mark.parametrize("extra", [{}, {"stop": ["never there"]}, {"logprobs": 1}], ids=str)
def test_answers_end_at_the_first_repetition(llm: LLM, extra: dict[str, Any]) -> None:
    most, count = 3, 3
    detection = RepetitionDetectionParams(most, 1, count)
    plain = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            n=2,
            max_tokens=60,
            ignore_eos=True,
            min_tokens=5 * (seed % 3),
            allowed_token_ids=[450, 451, 452][: 2 + seed % 2],
            **extra,
        )
        for seed in range(8)
    ]
    detecting = [p.clone() for p in plain]
    for one in detecting:
        one.repetition_detection = detection
    whole = llm.generate(["The river"] * 8, plain, use_tqdm=False)
    ended = llm.generate(["The river"] * 8, detecting, use_tqdm=False)
    reasons = set()
    for params, before, after in zip(plain, whole, ended, strict=True):
        for long, short in zip(before.outputs, after.outputs, strict=True):
            ids = list(long.token_ids)
            length = expected_length(ids, most, count, params.min_tokens)
            assert list(short.token_ids) == ids[:length]
            is_cut = length < len(ids)
            assert short.finish_reason == ("repetition" if is_cut else "length")
            assert short.stop_reason == ("repetition_detected" if is_cut else None)
            assert short.logprobs is None or len(short.logprobs) == length
            reasons.add(short.finish_reason)
    assert "repetition" in reasons
    pool = llm._session.engine.scheduler.pool
    assert pool.num_free == pool.num_blocks


def test_within_a_grammar_and_a_stream(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=40,
        structured_outputs=StructuredOutputsParams(regex="(ab)+x"),
        repetition_detection=RepetitionDetectionParams(4, 1, 4),
        logit_bias=dict.fromkeys(llm.get_tokenizer().encode("x"), -100.0),
    )
    [output] = llm.generate("The river", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "repetition"
    *_, (_, last) = llm.stream("The river", params, tokens=True)
    assert last.outputs[0].text == output.outputs[0].text
