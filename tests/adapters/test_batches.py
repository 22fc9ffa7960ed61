"""Many adapters in one batch: each row as if it were alone, however the batch is computed."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from tests.adapters.conftest import Shelf
from tests.adapters.peft_files import (
    applied,
    logprobs,
    make_peft,
    merged,
    named,
    open_llm,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
SHARED = list(range(1, 40))  # more than two blocks
PROMPTS = [[*SHARED, 41 + i] for i in range(8)] + [[7, 8, 9 + i] for i in range(4)]


def lora_of(shelf: Shelf) -> list[Any]:
    """Every adapter and none, in turns."""
    return [(None, *shelf.requests)[i % 4] for i in range(len(PROMPTS))]


def answers(outputs: list[Any]) -> list[Any]:
    return [
        [(list(a.token_ids), [p[t].logprob for p, t in zip(a.logprobs, a.token_ids, strict=True)])]
        for o in outputs
        for a in o.outputs
    ]


def same(one: list[Any], other: list[Any]) -> None:
    assert [[ids for ids, _ in a] for a in one] == [[ids for ids, _ in a] for a in other]
    for a, b in zip(one, other, strict=True):
        for (_, x), (_, y) in zip(a, b, strict=True):
            assert x == pytest.approx(y, abs=1e-4)


@pytest.fixture(scope="module")
def alone(shelf: Shelf) -> list[Any]:
    """Each prompt by itself, of a model with the adapter merged into its weights."""
    found: list[Any] = []
    for peft in (None, *shelf.pefts):
        model = deepcopy(shelf.model)
        if peft is not None:
            merged(model, peft)
        path = shelf.base.parent / f"merged-{len(found)}"
        model.save_pretrained(path)
        with open_llm(path, enable_lora=False, enable_prefix_caching=False) as llm:
            found.append([llm.generate(p, GREEDY, use_tqdm=False)[0] for p in PROMPTS])
    return answers([found[i % 4][i] for i in range(len(PROMPTS))])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 9},
        {"max_loras": 1},
        {"max_loras": 2, "max_num_seqs": 3},
        {"num_gpu_blocks_override": 9},  # rows make room for others
        {"max_num_batched_tokens": 512, "max_num_seqs": 32},
    ],
    ids=str,
)
def test_a_mixed_batch_is_one_by_one(
    shelf: Shelf, alone: list[Any], options: dict[str, Any]
) -> None:
    with open_llm(shelf.base, **options) as llm:
        if "num_gpu_blocks_override" in options:  # as if every answer were short
            llm._session.engine.scheduler._admission._expected_output = lambda request: 1.0
        for _ in range(2):  # again with what the first left in the cache
            given = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=lora_of(shelf))
            same(answers(given), alone)
        if "num_gpu_blocks_override" in options:
            assert llm._session.engine.scheduler.num_preemptions > 0


def test_no_adapter_reads_what_another_wrote(shelf: Shelf) -> None:
    with open_llm(shelf.base) as llm:
        for request in (None, *shelf.requests):
            first, second = (
                llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, lora_request=request)[0]
                for _ in range(2)
            )
            assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


def test_equal_prompts_are_duplicates_under_one_adapter_alone(shelf: Shelf) -> None:
    one, other, _ = shelf.requests
    asked = [one, other, None, one]
    with open_llm(shelf.base) as llm:
        windows, _ = llm._session.intake.read(
            [PROMPTS[0]] * 4, GREEDY, adapters=llm._session.asked_adapters(asked)
        )
        [window] = list(windows)
        assert llm._session._planner.order(window).duplicates == {3: 0}
        outputs = llm.generate([PROMPTS[0]] * 4, GREEDY, use_tqdm=False, lora_request=asked)
    ids = [tuple(o.outputs[0].token_ids) for o in outputs]
    assert len({*ids}) == 3 and ids[0] == ids[3]
    assert [o.lora_request for o in outputs] == asked


def test_bits_do_not_depend_on_the_batch_where_that_is_promised(shelf: Shelf) -> None:
    with open_llm(shelf.base, batch_invariant=True) as llm:
        together = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=lora_of(shelf))
        single = [
            llm.generate(p, GREEDY, use_tqdm=False, lora_request=r)[0]
            for p, r in zip(PROMPTS, lora_of(shelf), strict=True)
        ]
    assert answers(together) == answers(single)


def test_samples_beams_and_scores_use_the_adapter(shelf: Shelf) -> None:
    request, peft = shelf.requests[1], shelf.pefts[1]
    model = deepcopy(shelf.model)
    merged(model, peft)
    path = shelf.base.parent / "merged-again"
    model.save_pretrained(path)
    samples = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, logprobs=0)
    beams = BeamSearchParams(beam_width=3, max_tokens=5)

    def everything(llm: LLM, **lora: Any) -> list[Any]:
        drawn = llm.generate(PROMPTS[:2], samples, use_tqdm=False, **lora)
        searched = llm.beam_search(PROMPTS[:2], beams, **lora)
        scores = llm.score_continuations(PROMPTS[8:10], [[[1, 2], [1, 3]], [[4]]], **lora)
        return [
            [list(a.token_ids) for o in drawn for a in o.outputs],
            [s.tokens for o in searched for s in o.sequences],
            pytest.approx([s.logprob for some in scores for s in some], abs=1e-3),
        ]

    with open_llm(path, enable_lora=False) as llm:
        expected = everything(llm)
    with open_llm(shelf.base) as llm:
        found = everything(llm, lora_request=request)
        plain = everything(llm)
    for ours, theirs, without in zip(found, expected, plain, strict=True):
        ours = getattr(ours, "expected", ours)
        assert ours == theirs
        assert ours != without


def test_contexts_of_two_adapters_are_scored_apart(shelf: Shelf) -> None:
    one, other, _ = shelf.requests
    with open_llm(shelf.base) as llm:

        def scores(lora: Any, count: int) -> list[float]:
            found = llm.score_continuations(
                [PROMPTS[0]] * count, [[[3, 4]]] * count, lora_request=lora
            )
            return [some[0].logprob for some in found]

        apart = [scores(request, 1)[0] for request in (one, None, other)]
        assert scores([one, None, other], 3) == pytest.approx(apart, abs=1e-4)
        assert len({round(value, 3) for value in apart}) == 3


def test_embeddings_and_async_requests_use_the_adapter(shelf: Shelf, alone: list[Any]) -> None:
    with open_llm(shelf.base, convert="embed", runner="pooling") as llm:
        lora = [None, *shelf.requests]
        mixed = llm.embed(PROMPTS[:4], lora_request=lora, use_tqdm=False)
        single = [llm.embed(p, lora_request=r)[0] for p, r in zip(PROMPTS, lora, strict=False)]
        for a, b in zip(mixed, single, strict=True):
            assert a.outputs.embedding == pytest.approx(b.outputs.embedding, abs=1e-5)
        plain = llm.embed(PROMPTS[1], use_tqdm=False)[0]
        assert plain.outputs.embedding != pytest.approx(mixed[1].outputs.embedding, abs=1e-2)

    async def ask(llm: AsyncLLM, index: int) -> Any:
        async for output in llm.generate(
            {"prompt_token_ids": PROMPTS[index]}, GREEDY, lora_request=lora_of(shelf)[index]
        ):
            last = output
        return last

    async def all_of_them() -> list[Any]:
        options: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}
        with AsyncLLM(
            str(shelf.base), enable_lora=True, kv_cache_memory_bytes=4 << 20, **options
        ) as llm:
            return await asyncio.gather(*(ask(llm, i) for i in range(len(PROMPTS))))

    same(answers(asyncio.run(all_of_them())), alone)


def test_fifty_adapters_in_one_batch_of_which_memory_keeps_six(
    shelf: Shelf, tmp_path: Path
) -> None:
    pefts = [make_peft(shelf.model, ("q_proj", "down_proj"), seed=i) for i in range(50)]
    asked = [named(p.save(tmp_path / str(i)), i + 1) for i, p in enumerate(pefts)]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompt = PROMPTS[0]
    with open_llm(shelf.base, max_loras=4, max_cpu_loras=6) as llm:
        prompts = [{"prompt_token_ids": prompt}] * 100
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=asked * 2)
        assert llm._session.model.adapters is not None
        assert len(llm._session.model.adapters._loaded) <= 6
    for i, output in enumerate(outputs):
        tokens = list(output.outputs[0].token_ids)
        with applied(shelf.model, pefts[i % 50]):
            expected = logprobs(shelf.model, [*prompt, *tokens])[len(prompt) - 1 : -1]
        assert tokens == expected.argmax(-1).tolist()
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) > 40


def test_eight_bit_weights_take_adapters(shelf: Shelf) -> None:
    """Base rounded to bytes, adapter in float32: near the exact one, and the same in any batch."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, prompt_logprobs=0)
    with open_llm(shelf.base) as llm:
        exact = llm.generate(PROMPTS, params, use_tqdm=False, lora_request=lora_of(shelf))
    with open_llm(shelf.base, quantization="int8") as llm:
        mixed = llm.generate(PROMPTS, params, use_tqdm=False, lora_request=lora_of(shelf))
        single = [
            llm.generate(p, params, use_tqdm=False, lora_request=r)[0]
            for p, r in zip(PROMPTS, lora_of(shelf), strict=True)
        ]
        plain = llm.generate(PROMPTS, params, use_tqdm=False)

    def scored(outputs: list[Any]) -> list[list[float]]:
        return [
            [
                p[t].logprob
                for p, t in zip(o.prompt_logprobs[1:], o.prompt_token_ids[1:], strict=True)
            ]
            for o in outputs
        ]

    assert scored(mixed) == scored(single)
    off, far = (
        sum(
            abs(a - b)
            for x, y in zip(scored(some), scored(exact), strict=True)
            for a, b in zip(x, y, strict=True)
        )
        for some in (mixed, plain)
    )
    assert off < far / 4
