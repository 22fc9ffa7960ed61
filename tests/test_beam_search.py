"""LLM.beam_search: what goes in, what comes out, and that it disturbs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import (
    LLM,
    BatchError,
    BeamSearchOutput,
    BeamSearchParams,
    DoesNotFit,
    InvalidParams,
    LoRARequest,
    NotSupported,
    PromptTooLong,
    QuireWarning,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.v1.sample.logits_processor import LogitsProcessor
from tests.tiny_llm import tiny_llm

PROMPTS = ["The ship sails at dawn", "One two three", "The ship sails at dusk"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("beams")) as made:
        yield made


@pytest.fixture(autouse=True)
def every_block_comes_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "llm" in request.fixturenames:
        scheduler = request.getfixturevalue("llm")._session.engine.scheduler
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
        assert scheduler.num_unfinished == 0


def tokens(outputs: list[BeamSearchOutput]) -> list[list[list[int]]]:
    return [[s.output_token_ids for s in output.sequences] for output in outputs]


def test_sequences_have_the_shape_that_scripts_know(llm: LLM) -> None:
    [output] = llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=3, max_tokens=6))
    prompt_ids = llm.get_tokenizer().encode(PROMPTS[0])
    assert len(output.sequences) == 3
    for sequence in output.sequences:
        assert sequence.orig_prompt == PROMPTS[0]
        assert sequence.tokens == prompt_ids + sequence.output_token_ids
        assert sequence.text is not None and sequence.text.startswith(PROMPTS[0])
        assert sequence.finish_reason == "length" and sequence.stop_reason is None
        assert len(sequence.output_token_ids) == 6 == len(sequence.logprobs)
        own = [p[t] for p, t in zip(sequence.logprobs, sequence.output_token_ids, strict=True)]
        assert sequence.cum_logprob == pytest.approx(sum(one.logprob for one in own))
        assert all(one.decoded_token is not None for one in own)
        assert all(len(position) >= 6 for position in sequence.logprobs)
    scores = [s.cum_logprob for s in output.sequences]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    "prompt",
    [
        "One two three",
        [3, 4, 5],
        {"prompt": "One two three"},
        {"prompt_token_ids": [3, 4, 5]},
        ["One two three", [3, 4, 5], {"prompt_token_ids": [6, 7]}],
    ],
)
def test_any_prompt_that_generate_takes(llm: LLM, prompt: Any) -> None:
    outputs = llm.beam_search(prompt, BeamSearchParams(2, 3))
    assert len(outputs) == (3 if isinstance(prompt, list) and prompt != [3, 4, 5] else 1)
    assert all(len(output.sequences) == 2 for output in outputs)


def test_a_width_of_one_is_greedy(llm: LLM) -> None:
    found = llm.beam_search(PROMPTS, BeamSearchParams(1, 8, True))
    greedy = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert tokens(found) == [[list(o.outputs[0].token_ids)] for o in greedy]


def test_the_n_best_are_the_first_of_all(llm: LLM) -> None:
    params = BeamSearchParams(4, 5)
    all_of_them = tokens(llm.beam_search(PROMPTS, params))
    best = tokens(llm.beam_search(PROMPTS, BeamSearchParams(4, 5, n=2)))
    assert best == [some[:2] for some in all_of_them]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_limit_changes_how_many_run_at_once_and_nothing_else(llm: LLM, limit: int) -> None:
    params = BeamSearchParams(3, 5)
    engine = llm._session.engine
    most, step = 0, engine.step

    def counted() -> Any:
        nonlocal most
        ended = step()
        most = max(most, engine.scheduler.num_unfinished)
        return ended

    engine.step = counted  # type: ignore[method-assign]
    try:
        found = llm.beam_search(PROMPTS, params, concurrency_limit=limit)
    finally:
        engine.step = step  # type: ignore[method-assign]
    assert tokens(found) == tokens(llm.beam_search(PROMPTS, params))
    assert most <= 3 * min(limit, 3)


def test_equal_prompts_are_searched_once_and_answered_each(llm: LLM) -> None:
    outputs = llm.beam_search([PROMPTS[0]] * 3, BeamSearchParams(2, 4))
    assert tokens(outputs)[0] == tokens(outputs)[1] == tokens(outputs)[2]


def test_depth_chunks_and_cache_change_nothing(llm: LLM, tmp_path: Path) -> None:
    params, long_prompt = BeamSearchParams(4, 12), " ".join(PROMPTS * 8)
    expected = tokens(llm.beam_search([*PROMPTS, long_prompt], params))
    options: list[dict[str, Any]] = [
        {"async_scheduling": True, "max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"enable_prefix_caching": False, "max_num_seqs": 4},
    ]
    for some in options:
        with tiny_llm(tmp_path, **some) as other:
            assert tokens(other.beam_search([*PROMPTS, long_prompt], params)) == expected


@pytest.mark.parametrize("num_rows", [1, pytest.param(3, marks=pytest.mark.long)])
def test_fewer_rows_than_beams_find_the_same(llm: LLM, tmp_path: Path, num_rows: int) -> None:
    searches = [
        BeamSearchParams(2, 5),
        BeamSearchParams(8, 5),
        BeamSearchParams(4, 20, structured_outputs=PERSON),
    ]
    prompts = [PROMPTS[0], " ".join(PROMPTS * 4)]
    with tiny_llm(tmp_path, max_num_seqs=num_rows) as narrow:
        for search in searches:
            found = narrow.beam_search(prompts, search)
            assert tokens(found) == tokens(llm.beam_search(prompts, search))
        pool = narrow._session.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks


def test_preempted_searches_find_the_same(llm: LLM) -> None:
    params = [BeamSearchParams(3, 10), BeamSearchParams(3, 10, structured_outputs=PERSON)]
    expected = [tokens(llm.beam_search(PROMPTS, p)) for p in params]
    scheduler = llm._session.engine.scheduler
    schedule, turns = scheduler.schedule, iter(range(10**9))

    def disturbed() -> Any:
        if next(turns) % 3 == 2 and len(scheduler._preemption._first_rows()) > 1:
            scheduler._preemption.make_room()
        return schedule()

    scheduler.schedule = disturbed  # type: ignore[method-assign]
    try:
        before = scheduler.num_preemptions
        assert [tokens(llm.beam_search(PROMPTS, p)) for p in params] == expected
        assert scheduler.num_preemptions > before + 3
    finally:
        scheduler.schedule = schedule  # type: ignore[method-assign]


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"enum": [1, 2]}},
    "required": ["age", "ok"],
    "additionalProperties": False,
}
PERSON = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)


def test_every_beam_keeps_to_the_grammar(llm: LLM) -> None:
    params = BeamSearchParams(4, 40, structured_outputs=PERSON)
    for output in llm.beam_search(PROMPTS, params):
        prompt = output.sequences[0].orig_prompt
        assert len(output.sequences) == 4
        assert len({tuple(s.output_token_ids) for s in output.sequences}) == 4
        for sequence in output.sequences:
            assert sequence.finish_reason == "stop"
            found = json.loads((sequence.text or "").removeprefix(prompt))
            assert 0 <= found["age"] <= 99 and found["ok"] in (1, 2)
            # Forced tokens are drawn, too: each has its logprob.
            assert len(sequence.logprobs) == len(sequence.output_token_ids)


def test_fewer_answers_than_beams_where_the_grammar_has_no_more(llm: LLM) -> None:
    choice = StructuredOutputsParams(choice=["a"])
    [output] = llm.beam_search(PROMPTS[0], BeamSearchParams(4, 5, structured_outputs=choice))
    assert [s.text for s in output.sequences] == [PROMPTS[0] + "a"]


def test_without_an_end_token_the_end_of_the_grammar_ends_a_beam(llm: LLM) -> None:
    choice = StructuredOutputsParams(choice=["yes", "no"])
    params = BeamSearchParams(2, 12, True, structured_outputs=choice)
    [output] = llm.beam_search(PROMPTS[0], params)
    assert {s.text for s in output.sequences} <= {PROMPTS[0] + "yes", PROMPTS[0] + "no"}
    assert {s.finish_reason for s in output.sequences} == {"stop"}


def test_a_beam_cut_inside_the_grammar_says_so(llm: LLM) -> None:
    [output] = llm.beam_search(PROMPTS[0], BeamSearchParams(2, 3, structured_outputs=PERSON))
    for sequence in output.sequences:
        assert sequence.finish_reason == "length"
        assert sequence.stop_reason == "unfinished_structured_output"


@pytest.mark.parametrize("included", [True, False])
def test_the_end_token_is_shown_if_asked_for(llm: LLM, included: bool) -> None:
    choice = StructuredOutputsParams(choice=["a"])
    params = BeamSearchParams(1, 5, include_stop_str_in_output=included, structured_outputs=choice)
    [output] = llm.beam_search(PROMPTS[0], params)
    assert output.sequences[0].output_token_ids[-1] == 2
    assert (output.sequences[0].text or "").endswith("<|im_end|>") is included


def test_free_rows_and_searches_in_one_batch(llm: LLM) -> None:
    from dataclasses import replace

    from quire.request import Request

    session = llm._session
    greedy = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    alone = [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, greedy)]
    search = BeamSearchParams(3, 10, True)
    searched = tokens(llm.beam_search(PROMPTS, search))
    windows, _ = session.intake.read(PROMPTS * 2, greedy)
    requests = [item for window in windows for item in window if isinstance(item, Request)]
    mixed = [*requests[:3], *(replace(r, search=search) for r in requests[3:])]
    outputs = dict(session.run([list(mixed)], lambda: None))
    assert [list(outputs[i].outputs[0].token_ids) for i in range(3)] == alone
    assert [[list(a.token_ids) for a in outputs[i].outputs] for i in range(3, 6)] == searched


def test_the_answer_ends_where_the_model_does(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, max_model_len=32) as short:
        [output] = short.beam_search([[5] * 28], BeamSearchParams(3, 50))
        assert [len(s.tokens) for s in output.sequences] == [32] * 3
        with pytest.raises(PromptTooLong):
            short.beam_search([[5] * 32], BeamSearchParams(3, 50))


def test_a_search_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    block = 2 * 2 * 16 * 2 * 8 * 4  # layers, K and V, block_size, heads, head_dim, bytes
    with tiny_llm(tmp_path, kv_cache_memory_bytes=12 * block) as small:
        with pytest.raises(BatchError) as failed:
            small.beam_search([[5] * 150, [6, 7]], BeamSearchParams(8, 20))
        assert isinstance(failed.value.errors[0], DoesNotFit)
        first, second = failed.value.outputs
        assert first is None and len(second.sequences) == 8
        assert small._session.engine.scheduler.pool.num_free == 12


def test_without_a_tokenizer_there_is_no_text(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, skip_tokenizer_init=True, tokenizer=None) as bare:
        [output] = bare.beam_search([[5, 6]], BeamSearchParams(2, 3))
        assert [s.text for s in output.sequences] == [None, None]
        assert all(len(s.tokens) == 5 for s in output.sequences)


def test_what_cannot_be_is_refused_with_its_rule(llm: LLM) -> None:
    params = BeamSearchParams(2, 3)
    with pytest.raises(InvalidParams, match="BeamSearchParams, not SamplingParams"):
        llm.beam_search("a", SamplingParams())  # type: ignore[arg-type]
    too_many = llm.kv_cache.num_blocks + 1
    with pytest.raises(InvalidParams, match=f"beam_width is {too_many}"):
        llm.beam_search("a", BeamSearchParams(too_many, 3))
    with pytest.raises(InvalidParams, match="concurrency_limit"):
        llm.beam_search("a", params, concurrency_limit=0)
    with pytest.raises(NotSupported):
        llm.beam_search("a", params, lora_request=LoRARequest("a", 1, "adapter"))
    params.beam_width = 0
    with pytest.raises(InvalidParams, match="beam_width"):
        llm.beam_search("a", params)


def test_a_temperature_changes_nothing_and_says_so(llm: LLM) -> None:
    plain = tokens(llm.beam_search(PROMPTS[0], BeamSearchParams(2, 4)))
    with pytest.warns(QuireWarning, match="temperature"):
        warm = llm.beam_search(PROMPTS[0], BeamSearchParams(2, 4, temperature=0.7))
    assert tokens(warm) == plain


def test_a_grammar_that_is_refused_names_itself(llm: LLM) -> None:
    broken = StructuredOutputsParams(regex="(")
    with pytest.raises(BatchError) as failed:
        llm.beam_search(PROMPTS[:2], BeamSearchParams(2, 4, structured_outputs=broken))
    assert set(failed.value.errors) == {0, 1}


class Halved(LogitsProcessor):
    """Every logit by half."""

    def __init__(self, config: object, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: object) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / 2


def test_processors_that_would_not_be_heeded_are_refused(tmp_path: Path) -> None:
    with (
        tiny_llm(tmp_path, logits_processors=[Halved]) as halved,
        pytest.raises(NotSupported, match="logits_processors"),
    ):
        halved.beam_search("a", BeamSearchParams(2, 3))
