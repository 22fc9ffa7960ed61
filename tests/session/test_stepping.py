"""LLMEngine: requests added one by one, computed a step at a time by the caller's own loop."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from quire import (
    LLM,
    EngineArgs,
    EngineBusy,
    InvalidPrompt,
    InvalidRequest,
    LLMEngine,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from quire.sampling_params import StructuredOutputsParams
from quire.session.views import EngineView

PROMPTS = ["The river", "A quiet house by the sea", "Once", "The river"]


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.9, "seed": 5, "max_tokens": 9, **changes})


def answers(output: RequestOutput) -> list[tuple[Any, ...]]:
    return [(a.text, list(a.token_ids), a.finish_reason) for a in output.outputs]


def run_to_the_end(engine: EngineView) -> dict[str, list[Any]]:
    """Every output by the id of its request."""
    seen: dict[str, list[Any]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(output)
    return seen


def test_stepped_answers_are_those_of_generate(llm: LLM) -> None:
    asked = [params(), params(n=2), params(logprobs=1, prompt_logprobs=0), params(stop=["e"])]
    whole = llm.generate(PROMPTS, asked, use_tqdm=False)
    engine = llm.llm_engine
    for number, (prompt, one) in enumerate(zip(PROMPTS, asked, strict=True)):
        assert engine.add_request(f"r{number}", prompt, one) == f"r{number}"
        engine.step()  # the first are under way when the others come
    assert llm.llm_engine.get_num_unfinished_requests() > 0  # another look at the same engine
    seen = run_to_the_end(engine)
    assert engine.step() == [] and llm._session.engine.idle
    for number, expected in enumerate(whole):
        outputs = seen[f"r{number}"]
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert answers(outputs[-1]) == answers(expected)
    assert len(seen["r1"]) > 2
    [logged] = seen["r2"][-1].outputs
    assert len(logged.logprobs) == 9 and seen["r2"][-1].prompt_logprobs is not None


def test_outputs_come_as_their_kind_says(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("new", "The river", params(output_kind=RequestOutputKind.DELTA))
    engine.add_request("last", "The river", params(output_kind=RequestOutputKind.FINAL_ONLY))
    seen = run_to_the_end(engine)
    [last] = seen["last"]
    assert "".join(o.outputs[0].text for o in seen["new"]) == last.outputs[0].text
    engine.add_request("json", "x", params(structured_outputs=StructuredOutputsParams(regex="ab")))
    assert run_to_the_end(engine)["json"][-1].outputs[0].text == "ab"


def test_what_is_given_up_gives_no_more_outputs_and_leaves_nothing(llm: LLM) -> None:
    engine, pool = llm.llm_engine, llm._session.engine.scheduler.pool
    for name in "abc":
        engine.add_request(name, "The river", params(max_tokens=200, ignore_eos=True, seed=None))
    engine.abort_request("c")  # before any step
    engine.step()
    engine.abort_request(["a", "unknown"])
    seen = [output.request_id for _ in range(3) for output in engine.step()]
    assert set(seen) == {"b"} and engine.get_num_unfinished_requests() == 1
    engine.abort_request(["b"])
    assert not engine.has_unfinished_requests() and engine.step() == []
    assert llm._session.engine.idle and pool.num_free == pool.num_blocks


def test_other_calls_wait_until_the_engine_is_empty(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("a", "The river", params())
    calls: list[Any] = [lambda: llm.generate("x"), llm.sleep, llm.reset_prefix_cache]
    for call in calls:
        with pytest.raises(EngineBusy, match=r"abort_request\(\)"):
            call()
    run_to_the_end(engine)
    assert llm.generate("x", params(), use_tqdm=False)[0].finished


def test_what_is_wrong_is_said_where_it_is_added(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("a", "The river", params())
    wrong: Any = 7
    for name in ("a", wrong):
        with pytest.raises(InvalidRequest, match="request_id"):
            engine.add_request(name, "x", params())
    with pytest.raises(InvalidPrompt, match="empty"):
        engine.add_request("b", "", params())
    with pytest.raises(InvalidRequest, match="SamplingParams or a PoolingParams"):
        engine.add_request("b", "x", wrong)
    assert engine.get_num_unfinished_requests() == 1
    assert set(run_to_the_end(engine)) == {"a"}


def test_ctrl_c_loses_no_output(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llm.llm_engine
    engine.add_request("a", "The river", params(output_kind=RequestOutputKind.DELTA))
    real = llm._session.engine.step
    texts = []

    def pressed() -> Any:
        signal.raise_signal(signal.SIGINT)
        return real()

    monkeypatch.setattr(llm._session.engine, "step", pressed)
    with pytest.raises(KeyboardInterrupt):
        while True:
            texts += [o.outputs[0].text for o in engine.step()]
    monkeypatch.undo()
    texts += [o.outputs[0].text for outputs in run_to_the_end(engine).values() for o in outputs]
    assert "".join(texts) == llm.generate("The river", params())[0].outputs[0].text


def test_an_engine_that_fails_is_empty_and_ready_again(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm.llm_engine
    engine.add_request("a", "The river", params())
    with monkeypatch.context() as broken:
        broken.setattr(llm._session.engine, "step", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert not engine.has_unfinished_requests()
    assert llm.generate("x", params(), use_tqdm=False)[0].finished


def test_an_engine_of_its_own(llm: LLM) -> None:
    options = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32"}
    args = EngineArgs(
        model=llm.model_config.model, kv_cache_memory_bytes=8 << 20, convert="embed", **options
    )
    engine = LLMEngine.from_engine_args(args)
    assert engine.get_supported_tasks() == ("generate", "embed", "token_embed")
    engine.add_request("e", "The river", PoolingParams(task="embed"))
    [[output]] = run_to_the_end(engine).values()
    assert output.finished and output.outputs.data.shape == (32,)
    engine.shutdown()
