"""LLM: what a caller sees. A tiny random model; the real one is in tests/parity."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import (
    LLM,
    BatchError,
    EngineBusy,
    EngineClosed,
    EngineError,
    Interrupted,
    InvalidOption,
    InvalidParams,
    InvalidPrompt,
    InvalidRequest,
    LoRARequest,
    NotSupported,
    PromptTooLong,
    RequestOutput,
    SamplingParams,
)
from quire.errors import DoesNotFit
from tests.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("every_block_is_free_afterwards")
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
GREEDY = SamplingParams(temperature=0, max_tokens=6)
WORDS = ["The river", "A quiet house by", "Once", "In the beginning there was", "seven"]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [o.outputs[0].text for o in outputs]


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


def generate(llm: LLM, *args: Any, **options: Any) -> list[RequestOutput]:
    return llm.generate(*args, use_tqdm=False, **options)


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=m) for m in (9, 1, 5, 2, 7)]
    outputs = generate(llm, WORDS, params)
    assert [o.prompt for o in outputs] == WORDS
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 1, 5, 2, 7]
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in outputs)


class Words(str, Enum):  # noqa: UP042 - StrEnum is its text already
    FIRST = "Once upon"


def test_every_form_of_prompt_gives_the_same_answer(llm: LLM) -> None:
    token_ids = generate(llm, "Once upon")[0].prompt_token_ids
    assert token_ids is not None
    forms: list[Any] = [
        "Once upon",
        {"prompt": "Once upon"},
        {"prompt_token_ids": token_ids},
        token_ids,
        np.array(token_ids),
        ["Once upon"],
        [token_ids],
        iter(["Once upon"]),
        ({"prompt_token_ids": t} for t in [token_ids]),
        Words.FIRST,
    ]
    answers = [ids(generate(llm, form, GREEDY)) for form in forms]
    assert all(a == answers[0] for a in answers)
    older = generate(llm, prompt_token_ids=[token_ids], sampling_params=GREEDY)
    assert ids(older) == answers[0]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert generate(llm, []) == []
    assert list(llm.stream(iter([]))) == []


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ("", InvalidPrompt),
        ([], InvalidPrompt),
        ([1, -4], InvalidPrompt),
        ([10**9], InvalidPrompt),
        ({"prompt_token_ids": [1.5]}, InvalidPrompt),
        ("half \ud800 a pair", InvalidPrompt),
        (object(), InvalidPrompt),
        ({"prmpt": "a"}, InvalidPrompt),
        ([7] * 512, PromptTooLong),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, NotSupported),
    ],
)
def test_a_bad_prompt_in_a_list_raises_before_any_work_and_names_its_index(
    llm: LLM, bad: Any, kind: type[Exception]
) -> None:
    steps = llm._session.engine.num_steps
    with pytest.raises(kind, match="prompt 1"):
        generate(
            llm, [{"prompt": "good"}, bad if isinstance(bad, dict) else _as_prompt(bad)], GREEDY
        )
    assert llm._session.engine.num_steps == steps


def _as_prompt(bad: Any) -> Any:
    return {"prompt_token_ids": bad} if isinstance(bad, list) else bad


def test_with_on_error_return_the_good_prompts_all_finish(llm: LLM) -> None:
    mixed = ["good", "", [5, 6], [-1], {"prompt_token_ids": [7] * 600}, "also good"]
    outputs = generate(llm, mixed, GREEDY, on_error="return")
    assert [o.outputs[0].finish_reason for o in outputs] == [
        "length", "error", "length", "error", "error", "length",
    ]  # fmt: skip
    assert isinstance(outputs[4].error, PromptTooLong) and "prompt 4" in str(outputs[4].error)
    assert texts(outputs)[0] == texts(generate(llm, ["good"], GREEDY))[0]


def test_a_bad_prompt_of_an_iterator_lets_the_others_finish_and_then_raises(llm: LLM) -> None:
    with pytest.raises(BatchError) as caught:
        generate(llm, iter(["good", "", "fine"]), GREEDY)
    assert list(caught.value.errors) == [1]
    assert [o.outputs[0].finish_reason for o in caught.value.outputs] == [
        "length", "error", "length",
    ]  # fmt: skip


def test_lists_that_do_not_match_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParams, match="2 entries for 3 prompts"):
        generate(llm, ["a", "b", "c"], [GREEDY, GREEDY])
    with pytest.raises(InvalidParams, match="1 entries for 2 prompts"):
        generate(llm, ["a", "b"], GREEDY, priority=[1])
    with pytest.raises(InvalidParams, match="no whole number"):
        generate(llm, ["a", "b"], GREEDY, priority=[1, "urgent"])
    with pytest.raises(InvalidParams, match="there are more prompts"):
        generate(llm, iter(["a", "b"]), GREEDY, priority=[1])
    with pytest.raises(InvalidParams, match="beyond"):
        generate(llm, ["a"], GREEDY, priority=[2**31])
    with pytest.raises(InvalidPrompt, match="prompts is a object"):
        generate(llm, object(), GREEDY)
    with pytest.raises(InvalidPrompt, match="2 entries and prompt_token_ids 1"):
        generate(llm, ["a", "b"], GREEDY, prompt_token_ids=[[5]])
    with pytest.raises(InvalidParams, match="not a SamplingParams"):
        generate(llm, ["a"], [{"temperature": 0}])
    with pytest.raises(InvalidOption, match="on_error"):
        generate(llm, ["a"], GREEDY, on_error="ignore")


def test_a_parameter_broken_after_it_was_made_is_caught_at_the_door(llm: LLM) -> None:
    params = SamplingParams()
    params.temperature = float("nan")
    with pytest.raises(InvalidRequest, match="temperature"):
        generate(llm, ["a"], params)


def test_the_callers_objects_are_not_written_to(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, stop="zzz", bad_words=["house"])
    before = repr(params)
    prompts = [{"prompt_token_ids": [5, 6, 7]}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    generate(llm, prompts, params)
    llm.chat(messages, params, use_tqdm=False)
    assert repr(params) == before
    assert prompts == [{"prompt_token_ids": [5, 6, 7]}]
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


@pytest.fixture
def a_token_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed ahead: how many steps that saves depends on the clock."""
    guesses = llm._session.engine.scheduler.guesses
    monkeypatch.setattr(guesses, "plan", lambda decode, draft: decode)


@pytest.mark.usefixtures("a_token_a_step")
def test_stream_yields_each_result_as_it_finishes(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=m) for m in (30, 2, 10)]
    seen = [(index, output.prompt) for index, output in llm.stream(WORDS[:3], params)]
    assert [index for index, _ in seen] == [1, 2, 0]
    assert dict(seen) == dict(enumerate(WORDS[:3]))


def test_a_lazy_input_is_read_only_a_window_ahead(tmp_path: Path) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"number {read}"

    with tiny_llm(tmp_path, max_num_seqs=4) as small:
        stream = small.stream(endless(), SamplingParams(temperature=0, max_tokens=2))
        for _ in range(40):
            next(stream)
        assert read <= 40 + 8 * 4
        stream.close()  # type: ignore[attr-defined]
        assert texts(generate(small, ["number 1"], SamplingParams(temperature=0, max_tokens=2)))


def test_leaving_a_stream_frees_everything_and_the_next_call_gets_only_its_own(llm: LLM) -> None:
    for index, _ in llm.stream(WORDS, SamplingParams(temperature=0, max_tokens=40)):
        assert index >= 0
        break
    gc.collect()
    assert [o.prompt for o in generate(llm, ["alone"], GREEDY)] == ["alone"]


def test_on_result_is_called_once_for_each_and_what_it_raises_comes_out(llm: LLM) -> None:
    seen: dict[int, str] = {}
    outputs = generate(
        llm, WORDS, GREEDY, on_result=lambda i, o: seen.__setitem__(i, o.outputs[0].text)
    )
    assert seen == dict(enumerate(texts(outputs)))

    def stop(index: int, output: RequestOutput) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        generate(llm, WORDS, GREEDY, on_result=stop)


def test_calling_the_llm_from_its_own_callback_is_refused(llm: LLM) -> None:
    with pytest.raises(EngineBusy, match="callback"):
        generate(llm, WORDS, GREEDY, on_result=lambda i, o: generate(llm, "again", GREEDY))


def test_a_second_thread_waits_for_its_turn(llm: LLM) -> None:
    results: dict[int, list[str]] = {}
    expected = texts(generate(llm, WORDS, GREEDY))

    def work(number: int) -> None:
        results[number] = texts(generate(llm, WORDS, GREEDY))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == dict.fromkeys(range(4), expected)


def test_ctrl_c_hands_over_what_was_finished_and_leaves_the_llm_usable(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=m) for m in (2, 60, 60)]
    with pytest.raises(Interrupted) as caught:
        generate(llm, WORDS[:3], params, on_result=lambda i, o: signal.raise_signal(signal.SIGINT))
    finished = caught.value.outputs
    assert finished[0].outputs[0].finish_reason == "length" and finished[1:] == [None, None]
    assert isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [o.prompt for o in generate(llm, ["after"], GREEDY)] == ["after"]


def test_a_signal_at_any_step_leaves_every_block_free(llm: LLM) -> None:
    engine = llm._session.engine
    submit = engine.executor.submit
    expected = ids(generate(llm, WORDS, GREEDY))
    # Random and long: however many tokens are guessed right, there are more than 8 steps.
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=60)
    for moment in range(8):
        left = moment

        def counted(plan: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                signal.raise_signal(signal.SIGINT)
            return submit(plan)

        engine.executor.submit = counted  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                generate(llm, WORDS, params)
        finally:
            engine.executor.submit = submit  # type: ignore[method-assign]
        pool = engine.scheduler.pool
        assert pool.num_free == pool.num_blocks
    assert ids(generate(llm, WORDS, GREEDY)) == expected


def test_an_executor_that_breaks_leaves_a_clean_engine(llm: LLM) -> None:
    engine = llm._session.engine
    submit = engine.executor.submit

    def broken(plan: Any) -> Any:
        if len(plan.decode):
            raise EngineError("the device is gone")
        return submit(plan)

    engine.executor.submit = broken  # type: ignore[method-assign]
    try:
        with pytest.raises(EngineError, match="gone") as caught:
            generate(llm, WORDS[:2], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=9)])
    finally:
        engine.executor.submit = submit  # type: ignore[method-assign]
    assert len(caught.value.outputs) == 2
    assert ids(generate(llm, WORDS, GREEDY))


def test_closing_twice_is_fine_and_using_it_afterwards_is_not(tmp_path: Path) -> None:
    small = tiny_llm(tmp_path)
    small.close()
    small.close()
    for use in (
        lambda: generate(small, "a"),
        lambda: list(small.stream("a")),
        lambda: small.plan("a"),
    ):
        with pytest.raises(EngineClosed):
            use()


def test_it_is_neither_copied_nor_pickled(llm: LLM) -> None:
    for take in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotSupported, match="make one in each process"):
            take(llm)


def test_use_after_fork_says_what_to_do(llm: LLM) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate("a")
            message = "no error"
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert said.startswith("EngineBusy") and "spawn" in said


@pytest.mark.usefixtures("a_token_a_step")
def test_equal_greedy_prompts_are_computed_once(llm: LLM) -> None:
    llm.reset_prefix_cache()
    plan = llm.plan(["twin", "other", "twin", "twin"], GREEDY, probe=0)
    assert len(plan.duplicates) == 2
    seen = _computed_tokens(llm)
    outputs = generate(llm, ["twin", "other", "twin", "twin"], GREEDY)
    twice = _computed_tokens(llm) - seen
    llm.reset_prefix_cache()
    seen = _computed_tokens(llm)
    generate(llm, ["twin", "other"], GREEDY)
    assert twice == _computed_tokens(llm) - seen
    assert texts(outputs)[0] == texts(outputs)[2] == texts(outputs)[3]
    assert len({o.request_id for o in outputs}) == 4


def _computed_tokens(llm: LLM) -> int:
    """Steps of the engine so far; equal work takes equal steps."""
    return llm._session.engine.num_steps


def test_metrics_are_always_filled(llm: LLM) -> None:
    metrics = generate(llm, "timed", GREEDY)[0].metrics
    assert metrics is not None
    assert metrics.num_generation_tokens == 6
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.arrival_time > 1.6e9


@pytest.mark.parametrize(("k", "least"), [(0, 1), (5, 5), (20, 20), (1000, 1000), (-1, 49152)])
def test_so_many_logprobs_come_as_were_asked_for(llm: LLM, k: int, least: int) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=2, logprobs=k, seed=2)
    (output,) = generate(llm, "numbers", params)
    answer = output.outputs[0]
    assert answer.logprobs is not None
    for token, position in zip(answer.token_ids, answer.logprobs, strict=True):
        assert position is not None
        assert len(position) in (least, least + 1) and token in position
        if k == -1:
            assert sum(np.exp(e.logprob) for e in position.values()) == pytest.approx(1.0, abs=1e-4)


def test_cached_tokens_are_counted(llm: LLM) -> None:
    llm.reset_prefix_cache()
    shared = list(range(100, 164))
    outputs = generate(llm, [{"prompt_token_ids": [*shared, i]} for i in range(4)], GREEDY)
    assert sorted(o.num_cached_tokens or 0 for o in outputs) == [0, 64, 64, 64]


def test_a_row_that_outgrows_the_pool_fails_alone(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, num_gpu_blocks_override=4) as small:
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        outputs = small.generate(
            [[5] * 10, [6] * 10], [params, GREEDY], use_tqdm=False, on_error="return"
        )
        assert isinstance(outputs[0].error, DoesNotFit) and "64" in str(outputs[0].error)
        assert outputs[1].outputs[0].finish_reason == "length"
        with pytest.raises(PromptTooLong, match="64"):
            generate(small, [[5] * 80], GREEDY)


def test_max_tokens_none_writes_to_the_end_of_the_context(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, max_model_len=40) as small:
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = generate(small, [[5] * 10], params)
        assert len(output.outputs[0].token_ids) == 30
        assert output.outputs[0].finish_reason == "length"


def test_a_bar_of_the_callers_making_is_used(llm: LLM) -> None:
    class Bar:
        made: list[Any] = []

        def __init__(self, **options: Any) -> None:
            self.options, self.count, self.closed, self.postfix = options, 0, False, ""
            Bar.made.append(self)

        def update(self, by: int) -> None:
            self.count += by

        def close(self) -> None:
            self.closed = True

    llm.generate(WORDS, GREEDY, use_tqdm=Bar)
    (bar,) = Bar.made
    assert bar.options["total"] == len(WORDS) == bar.count and bar.closed
    assert "output" in bar.postfix


def test_enqueued_prompts_run_at_wait_for_completion(llm: LLM) -> None:
    first = llm.enqueue(["a b", "c d"], GREEDY)
    second = llm.enqueue("e f", GREEDY)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [o.request_id for o in outputs] == [*first, *second]
    assert ids(outputs) == ids(generate(llm, ["a b", "c d", "e f"], GREEDY))
    assert llm.wait_for_completion(use_tqdm=False) == []
    talks = [[{"role": "user", "content": word}] for word in ("a", "b")]
    named = llm.enqueue_chat(talks, GREEDY, chat_template=PLAIN)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [o.request_id for o in outputs] == named
    assert ids(outputs) == ids(llm.chat(talks, GREEDY, use_tqdm=False, chat_template=PLAIN))


def test_what_clients_read_is_there(llm: LLM) -> None:
    assert llm.llm_engine.model_config.max_model_len == 512
    assert llm.model_config.max_model_len == 512
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert llm.get_default_sampling_params() == SamplingParams()
    assert llm.get_tokenizer().decode(llm.get_tokenizer()("hello there").input_ids) == "hello there"
    assert llm.get_world_size() == 1


@pytest.mark.parametrize("name", ["start_profile", "update_weights"])
def test_what_is_not_built_says_so_with_a_way_out(llm: LLM, name: str) -> None:
    with pytest.raises(NotSupported, match=f"LLM.{name} is not built"):
        getattr(llm, name)("a")


def test_an_adapter_needs_enable_lora(llm: LLM) -> None:
    with pytest.raises(NotSupported, match="enable_lora=True"):
        generate(llm, "a", GREEDY, lora_request=LoRARequest("a", 1, "adapter"))
    with pytest.raises(InvalidRequest, match="LoRARequest"):
        generate(llm, "a", GREEDY, lora_request=object())


def test_without_a_tokenizer_token_ids_work_and_text_does_not(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, skip_tokenizer_init=True, tokenizer=None) as bare:
        (output,) = generate(bare, [[5, 6]], GREEDY)
        assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 6
        with pytest.raises(InvalidPrompt, match="skip_tokenizer_init"):
            generate(bare, ["text"], GREEDY)
        with pytest.raises(NotSupported, match="skip_tokenizer_init"):
            bare.get_tokenizer()


def test_a_chat_is_rendered_and_gets_no_second_beginning(llm: LLM) -> None:
    chats = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "bye"}]]
    outputs = llm.chat(chats, GREEDY, use_tqdm=False)
    assert [o.prompt is not None and "user" in o.prompt for o in outputs] == [True, True]
    single = llm.chat(chats[0], GREEDY, use_tqdm=False)
    assert ids(single) == ids(outputs[:1])
    with pytest.raises(InvalidPrompt, match="prompt 1"):
        llm.chat([chats[0], [{"content": "no role"}]], GREEDY, use_tqdm=False)
    mixed = llm.chat([chats[0], []], GREEDY, use_tqdm=False, on_error="return")
    assert ids(mixed[:1]) == ids(single) and mixed[1].error is not None
