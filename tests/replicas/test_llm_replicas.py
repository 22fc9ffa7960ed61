"""LLM(data_parallel_size=2): real replicas of a tiny model give what one engine gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.errors import BatchError, InvalidOption, NotSupported
from quire.sampling_params import BeamSearchParams, StructuredOutputsParams
from tests.jobs.driving import children_of, is_alive, wait_until
from tests.tiny_llm import tiny_llm
from tests.warm import name_of

PROMPTS = [f"Tell me about number {i} of the list, please" for i in range(24)]


def replicas() -> set[int]:
    """Processes of replicas among our children; grammars have some, too."""
    found, module = set[int](), "quire.replicas.child"
    for pid in children_of(os.getpid()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if module in words or Path(f"/proc/{pid}/comm").read_text().strip() == name_of(module):
                found.add(pid)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("two"), **OPTIONS, data_parallel_size=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("one"), **OPTIONS) as llm:
        yield llm


OPTIONS: dict[str, Any] = {"batch_invariant": True, "max_num_seqs": 4, "device": "cpu", "seed": 5}


def texts(outputs: list[Any]) -> list[list[str]]:
    return [[answer.text for answer in output.outputs] for output in outputs]


def test_outputs_are_those_of_one_engine_in_order(one: LLM, two: LLM) -> None:
    """With noise that comes from the request's number, samples, logprobs and choices."""
    params = [SamplingParams(temperature=1.0, max_tokens=4 + i % 9, n=1 + i % 2, logprobs=2)
              for i in range(len(PROMPTS))]  # fmt: skip
    here, there = one.generate(PROMPTS, params), two.generate(PROMPTS, params)
    assert texts(here) == texts(there)
    for a, b in zip(here, there, strict=True):
        assert (a.prompt, a.prompt_token_ids) == (b.prompt, b.prompt_token_ids)
        assert [x.token_ids for x in a.outputs] == [list(x.token_ids) for x in b.outputs]
        assert [x.logprobs for x in a.outputs] == [x.logprobs for x in b.outputs]
        assert [x.finish_reason for x in a.outputs] == [x.finish_reason for x in b.outputs]
    chosen = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["red", "blue"]))
    assert texts(one.generate(PROMPTS[:3], chosen)) == texts(two.generate(PROMPTS[:3], chosen))
    bounded = SamplingParams(thinking_token_budget=2, max_tokens=9, temperature=0)
    assert texts(one.generate("Why? <think>", bounded)) == texts(
        found := two.generate("Why? <think>", bounded)
    )
    assert "</think>" in found[0].outputs[0].text
    lines = [[5, 9]] * (len(one.get_tokenizer()("a b c").input_ids) - 1)
    naming = SamplingParams(max_tokens=1, prompt_logprob_token_ids=lines)
    ours, theirs = (
        np.asarray(llm.generate("a b c", naming)[0].prompt_token_id_logprobs) for llm in (one, two)
    )
    assert ours.shape == (len(lines), 2) and ours.tolist() == theirs.tolist()
    assert two.get_world_size() == 2 and two.get_world_size(include_dp=False) == 1
    parallel = two.llm_engine.parallel_config
    assert (parallel.data_parallel_size, parallel.world_size) == (2, 1)


def test_beams_scores_and_streams(one: LLM, two: LLM) -> None:
    beams = BeamSearchParams(beam_width=2, max_tokens=4)
    found = [
        [[s.tokens for s in o.sequences] for o in llm.beam_search(PROMPTS[:3], beams)]
        for llm in (one, two)
    ]
    assert found[0] == found[1]
    scores = [llm.score_continuations(["a b", "c"], [[" d", " e"], [" f"]]) for llm in (one, two)]
    assert scores[0] == scores[1]
    places = [place for place, _ in two.stream(iter(PROMPTS), SamplingParams(max_tokens=2))]
    assert sorted(places) == list(range(len(PROMPTS)))


def test_no_two_calls_score_under_the_same_number(two: LLM) -> None:
    """What a replica says late of a row of one call is not taken for one of the next."""
    calls = [two._session.score_call(["a b", "c"], [[" d"], [" e"]]) for _ in range(2)]
    numbers = [item.number for call in calls for some in call.windows() for item in some]
    assert len({*numbers, two._session.intake.take_numbers(1)}) == 5


def test_one_row_and_none(two: LLM) -> None:
    assert two.generate([], SamplingParams(max_tokens=2)) == []
    assert len(two.generate("hello", SamplingParams(max_tokens=2))) == 1


def test_a_row_that_cannot_run_costs_itself(two: LLM) -> None:
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("), max_tokens=3)
    good = SamplingParams(max_tokens=3)
    with pytest.raises(BatchError) as caught:
        two.generate(PROMPTS[:4], [good, bad, good, good])
    assert list(caught.value.errors) == [1]
    assert all(o.outputs[0].text for i, o in enumerate(caught.value.outputs) if i != 1)


def test_leaving_a_stream_leaves_nothing_behind(two: LLM) -> None:
    stream = two.stream(PROMPTS, SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()
    assert len(two.generate(PROMPTS, SamplingParams(max_tokens=2))) == len(PROMPTS)


def test_a_replica_that_is_killed_costs_nothing(one: LLM, two: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    stream = two.stream(PROMPTS, params)
    found = dict([next(stream)])
    os.kill(max(replicas()), signal.SIGKILL)
    found |= dict(stream)
    assert texts([found[i] for i in range(len(PROMPTS))]) == texts(one.generate(PROMPTS, params))


def test_what_cannot_be_done_is_said(two: LLM, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="data_parallel_size"):
        two.sleep()
    with pytest.raises(NotSupported, match="another process"):
        two.generate("a", SamplingParams(logits_processors=[lambda ids, logits: logits]))
    with pytest.raises(NotSupported, match="tokens=True"):
        list(two.stream("a", SamplingParams(max_tokens=2), tokens=True))
    with pytest.raises(InvalidOption, match="uni"):
        tiny_llm(tmp_path, data_parallel_size=2, distributed_executor_backend="uni")
    with pytest.raises(NotSupported, match="quire run --lora --replicas"):  # before any is read
        LLM(str(tmp_path / "nowhere"), data_parallel_size=2, enable_lora=True)
    with pytest.raises(NotSupported, match="quire run --ray"):
        tiny_llm(tmp_path, distributed_executor_backend="ray")
    with pytest.raises(NotSupported, match="pipeline_parallel_size"):
        tiny_llm(tmp_path, pipeline_parallel_size=2)


def test_closing_ends_every_process(two: LLM) -> None:
    """Last, since it closes what the others share."""
    mine = replicas()
    assert len(mine) == 2
    two.close()
    two.close()
    assert wait_until(lambda: not any(map(is_alive, mine)))
