"""Text as it grows: what is shown only ever grows, and joined it is the final text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, RequestOutput, RequestOutputKind, SamplingParams
from quire.results import output_pacing
from quire.results.output_pacing import OutputPacing
from tests.inputs.makers import save, train_sentencepiece
from tests.parity.prompts import OPENINGS
from tests.tiny_llm import CONFIG, tiny_llm

KINDS = ("byte pieces", "byte fallback")


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LLM]]:
    """Random models draw tokens of every kind, pieces of characters most of all."""
    with tiny_llm(tmp_path_factory.mktemp("bytes")) as one:
        home = tmp_path_factory.mktemp("fallback")
        vocabulary = train_sentencepiece()
        save(vocabulary, home)
        config = {**CONFIG, "vocab_size": vocabulary.get_vocab_size()}
        (home / "config.json").write_text(json.dumps(config))
        options: dict[str, Any] = {"load_format": "dummy", "dtype": "float32"}
        with LLM(str(home), kv_cache_memory_bytes=8 << 20, **options) as other:
            yield {"byte pieces": one, "byte fallback": other}


def random_params(rng: random.Random, kind: RequestOutputKind) -> SamplingParams:
    stops = rng.sample(
        ["e", "an", "\ufffd", " t", "ing", "of the", "é", "の"], rng.choice([0, 1, 3])
    )
    return SamplingParams(
        temperature=1.0,
        seed=rng.randrange(1000),
        max_tokens=rng.randint(3, 24),
        min_tokens=rng.choice([0, 0, 3]) if stops else 0,
        n=rng.choice([1, 1, 2]),
        stop=stops,
        include_stop_str_in_output=rng.random() < 0.3,
        logprobs=rng.choice([None, None, 1]),
        skip_special_tokens=rng.random() < 0.5,
        output_kind=kind,
    )


def check_growing(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> int:
    """Cumulative outputs grow into the final text; the number of outputs that were not final."""
    final = llm.generate(prompts, params, use_tqdm=False)
    seen: dict[tuple[int, int], str] = {}
    num_partial = 0
    for index, output in llm.stream(prompts, params, tokens=True):
        num_partial += not output.finished
        for answer in output.outputs:
            before = seen.get((index, answer.index), "")
            assert answer.text.startswith(before), (before, answer.text)
            assert answer.logprobs is None or len(answer.logprobs) == len(answer.token_ids)
            seen[index, answer.index] = answer.text
        if output.finished:
            assert answers(output) == answers(final[index])
    for index, output in enumerate(final):
        for answer in output.outputs:
            assert seen[index, answer.index] == answer.text
    return num_partial


def answers(output: RequestOutput) -> list[tuple[Any, ...]]:
    return [
        (a.text, list(a.token_ids), a.finish_reason, a.stop_reason, a.cumulative_logprob)
        for a in output.outputs
    ]


def check_deltas(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> None:
    final = llm.generate(prompts, params, use_tqdm=False)
    texts: dict[tuple[int, int], str] = {}
    ids: dict[tuple[int, int], list[int]] = {}
    for index, output in llm.stream(prompts, params, tokens=True):
        for answer in output.outputs:
            key = (index, answer.index)
            texts[key] = texts.get(key, "") + answer.text
            ids[key] = ids.get(key, []) + list(answer.token_ids)
            assert answer.logprobs is None or len(answer.logprobs) == len(answer.token_ids)
    for index, output in enumerate(final):
        for answer in output.outputs:
            assert texts[index, answer.index] == answer.text
            assert ids[index, answer.index] == list(answer.token_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_stream_grows_into_the_final_one(
    llms: dict[str, LLM], kind: str, long_mode: bool
) -> None:
    rng = random.Random(kind)
    count = 130 if long_mode else 40
    prompts = [rng.choice(OPENINGS)[: rng.randint(2, 30)] for _ in range(count)]
    params = [random_params(rng, RequestOutputKind.CUMULATIVE) for _ in prompts]
    assert check_growing(llms[kind], prompts, params) > 4 * count


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_parts_of_a_stream_join_to_the_final_text(
    llms: dict[str, LLM], kind: str, long_mode: bool
) -> None:
    rng = random.Random(kind)
    count = 130 if long_mode else 40
    prompts = [rng.choice(OPENINGS)[: rng.randint(2, 30)] for _ in range(count)]
    params = [random_params(rng, RequestOutputKind.DELTA) for _ in prompts]
    check_deltas(llms[kind], prompts, params)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_several_steps_join_to_the_final_text(
    llms: dict[str, LLM], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where telling takes as long as many steps."""
    rng, ticks = random.Random(kind), itertools.count()
    prompts = [rng.choice(OPENINGS)[: rng.randint(2, 30)] for _ in range(20)]
    params = [random_params(rng, RequestOutputKind.DELTA) for _ in prompts]
    often = len(list(llms[kind].stream(prompts, params, tokens=True)))
    monkeypatch.setattr(output_pacing, "FREE_SECONDS", 0.0)
    slow = partial(OutputPacing, clock=lambda: next(ticks) * 1e-4)
    monkeypatch.setattr("quire.run.OutputPacing", lambda paced: slow(paced=True))
    check_deltas(llms[kind], prompts, params)
    assert len(list(llms[kind].stream(prompts, params, tokens=True))) < 0.7 * often


def test_only_the_end_comes_where_only_the_end_is_wanted(llms: dict[str, LLM]) -> None:
    params = SamplingParams(max_tokens=5, output_kind=RequestOutputKind.FINAL_ONLY)
    results = list(llms["byte pieces"].stream(["a", "b"], params, tokens=True))
    assert len(results) == 2 and all(output.finished for _, output in results)


def test_leaving_a_stream_of_tokens_frees_everything(llms: dict[str, LLM]) -> None:
    llm = llms["byte pieces"]
    for _ in llm.stream(["a", "b", "c"], SamplingParams(max_tokens=50), tokens=True):
        break
    pool = llm._session.engine.scheduler.pool
    assert pool.num_free == pool.num_blocks
    assert llm.generate(["a"], SamplingParams(max_tokens=2), use_tqdm=False)[0].finished


def test_a_failed_prompt_is_told_in_a_stream_of_tokens(llms: dict[str, LLM]) -> None:
    prompts: list[Any] = ["a", "", "b"]
    params = SamplingParams(max_tokens=4)
    last = dict(llms["byte pieces"].stream(prompts, params, tokens=True))
    assert last[1].error is not None and last[0].finished and last[2].finished


def test_text_of_the_default_model_grows_in_many_scripts(
    default_model: Path, long_mode: bool
) -> None:
    prompts = OPENINGS if long_mode else OPENINGS[10:24]
    with LLM("smollm2") as llm:
        params = SamplingParams(temperature=0, max_tokens=16, stop=["\n\n", ". "])
        assert check_growing(llm, prompts, [params] * len(prompts)) > len(prompts)
