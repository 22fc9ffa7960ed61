"""AsyncLLM: many tasks on one engine thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import (
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    LoRARequest,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from quire.errors import EngineClosed, InvalidParams, InvalidPrompt, InvalidRequest, NotSupported
from quire.session.async_llm import NotBuiltAsyncMethods
from quire.step import StepPlan
from tests.jobs.driving import wait_until
from tests.tiny_llm import tiny_llm

LONG = SamplingParams(temperature=1.0, seed=1, max_tokens=200, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "tokenizer": "smollm2",
    "load_format": "dummy",
    "dtype": "float32",
    "kv_cache_memory_bytes": 8 << 20,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny_llm(directory).close()
    return directory


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[AsyncLLM]:
    with AsyncLLM(str(home), **OPTIONS) as made:
        yield made


def slow_down(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is LONG take four seconds: it is still written when a test comes to end it."""
    executor = llm._session.engine.executor
    submit = executor.submit

    def later(plan: StepPlan) -> Any:
        time.sleep(0.02 * plan.repeat)
        return submit(plan)

    monkeypatch.setattr(executor, "submit", later)


@pytest.fixture
def slow(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> AsyncLLM:
    slow_down(llm, monkeypatch)
    return llm


@pytest.fixture(autouse=True)
def everything_is_returned_afterwards(llm: AsyncLLM) -> Iterator[None]:
    yield
    engine = llm._session.engine
    wait_until(lambda: engine.idle and not llm._engine._running)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
    assert not llm._readers and not llm._engine._running


def params(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=6 + seed % 9, **more)


async def all_of(llm: AsyncLLM, *args: Any, **options: Any) -> list[RequestOutput]:
    return [output async for output in llm.generate(*args, **options)]


def test_many_tasks_get_what_an_llm_gives(llm: AsyncLLM, home: Path) -> None:
    async def main() -> list[list[RequestOutput]]:
        tasks = [all_of(llm, f"Task {i}", params(i), f"id-{i}") for i in range(200)]
        return await asyncio.gather(*tasks)

    streams = asyncio.run(main())
    with tiny_llm(home) as plain:
        expected = plain.generate(
            [f"Task {i}" for i in range(200)], [params(i) for i in range(200)], use_tqdm=False
        )
    for i, (outputs, one) in enumerate(zip(streams, expected, strict=True)):
        assert outputs[-1].finished and not any(o.finished for o in outputs[:-1])
        assert {o.request_id for o in outputs} == {f"id-{i}"}
        assert outputs[-1].outputs[0].text == one.outputs[0].text
        written = [o.metrics.num_generation_tokens for o in outputs if o.metrics is not None]
        assert written == [len(o.outputs[0].token_ids) for o in outputs]


def test_a_task_that_reads_slowly_finds_the_parts_joined(llm: AsyncLLM) -> None:
    async def main() -> tuple[int, str, str]:
        asked = params(8, output_kind=RequestOutputKind.DELTA)
        text, count = "", 0
        async for output in llm.generate("Slowly", asked):
            text, count = text + output.outputs[0].text, count + 1
            while llm._engine._running:  # until all of it was written
                await asyncio.sleep(0.01)
        [whole] = await all_of(llm, "Slowly", params(8, output_kind=RequestOutputKind.FINAL_ONLY))
        return count, text, whole.outputs[0].text

    count, text, whole = asyncio.run(main())
    assert text == whole and count <= 3


def test_aborting_by_id_ends_the_task_with_what_there_is(slow: AsyncLLM) -> None:
    async def main() -> RequestOutput:
        last = None
        async for output in slow.generate("Long", LONG, "long"):
            if last is None:
                await slow.abort("long")
            last = output
        assert last is not None
        return last

    last = asyncio.run(main())
    assert last.finished and last.outputs[0].finish_reason == "abort"
    assert 0 < len(last.outputs[0].token_ids) < 200


def test_leaving_the_loop_or_cancelling_the_task_gives_the_request_up(slow: AsyncLLM) -> None:
    async def main() -> None:
        stream = slow.generate("Long", LONG, "left")
        async for _ in stream:
            break
        await stream.aclose()
        task = asyncio.create_task(all_of(slow, "Long", LONG, "cancelled"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Both ids can be used again.
        for name in ("left", "cancelled"):
            assert (await all_of(slow, "a", params(1), name))[-1].finished

    asyncio.run(main())


def test_an_aborted_crowd_leaves_the_others_alone(llm: AsyncLLM) -> None:
    async def main() -> list[list[RequestOutput]]:
        tasks = [
            asyncio.create_task(all_of(llm, f"Row {i}", params(i), f"row-{i}")) for i in range(120)
        ]
        await asyncio.sleep(0.05)
        await llm.abort([f"row-{i}" for i in range(0, 120, 3)] + ["nobody"])
        return await asyncio.gather(*tasks)

    crowd = asyncio.run(main())

    async def alone() -> list[list[RequestOutput]]:
        return await asyncio.gather(*(all_of(llm, f"Row {i}", params(i)) for i in range(120)))

    for i, (one, other) in enumerate(zip(crowd, asyncio.run(alone()), strict=True)):
        assert one[-1].finished
        if one[-1].outputs[0].finish_reason != "abort":
            assert one[-1].outputs[0].text == other[-1].outputs[0].text
        else:
            assert i % 3 == 0


def test_bad_requests_raise_in_their_own_task(llm: AsyncLLM) -> None:
    async def main() -> list[Any]:
        asked = [("", params(1)), (5, params(1)), ("a", "no parameters"), ("fine", params(2))]
        tasks = [all_of(llm, prompt, some) for prompt, some in asked]
        return await asyncio.gather(*tasks, return_exceptions=True)

    empty, number, wrong, fine = asyncio.run(main())
    assert isinstance(empty, InvalidPrompt) and isinstance(number, InvalidPrompt)
    assert isinstance(wrong, InvalidParams)
    assert fine[-1].finished


def test_a_request_id_in_use_is_refused(slow: AsyncLLM) -> None:
    async def main() -> None:
        stream = slow.generate("Long", LONG, "same")
        await anext(stream)
        with pytest.raises(InvalidRequest, match="same"):
            await anext(slow.generate("Other", LONG, "same"))
        await stream.aclose()

    asyncio.run(main())


def test_two_event_loops_share_an_engine(llm: AsyncLLM) -> None:
    texts: dict[int, str] = {}

    def work(i: int) -> None:
        texts[i] = asyncio.run(all_of(llm, "Same", params(5)))[-1].outputs[0].text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts[0] == texts[1] != ""


def test_what_scripts_ask_of_an_engine(llm: AsyncLLM) -> None:
    assert not llm.is_stopped and asyncio.run(llm.get_supported_tasks()) == ("generate",)

    async def main() -> None:
        await llm.check_health()
        assert (await llm.get_tokenizer()).encode("a") and (await llm.get_model_config())
        assert llm.engine.tokenizer.encode("a")
        scheduler = llm.engine.vllm_config.scheduler_config
        assert scheduler.max_model_len == llm.engine.model_config.max_model_len
        with pytest.raises(NotSupported):
            await anext(llm.encode("a", PoolingParams(task="embed")))
        with pytest.raises(NotSupported):
            request = LoRARequest("a", 1, "adapter")
            await anext(llm.generate("a", params(1), lora_request=request))

    asyncio.run(main())
    assert llm.is_running and not llm.errored and llm.dead_error is None
    assert AsyncLLMEngine is AsyncLLM


@pytest.mark.parametrize("name", [one for one in vars(NotBuiltAsyncMethods) if one[0] != "_"])
def test_what_is_not_built_says_so(llm: AsyncLLM, name: str) -> None:
    with pytest.raises(NotSupported, match=f"AsyncLLM.{name} is not built. [A-Z]"):
        getattr(llm, name)()


def test_shutting_down_ends_waiting_tasks_and_the_thread(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(home), **OPTIONS))
    slow_down(made, monkeypatch)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(all_of(made, "Long", LONG)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(made.shutdown)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(error, EngineClosed) for error in asyncio.run(main()))
    assert not made._engine.thread.is_alive() and not made.is_running
    made.shutdown()
    with pytest.raises(EngineClosed):
        asyncio.run(all_of(made, "a", params(1)))


def test_an_error_of_the_engine_reaches_every_task(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = AsyncLLM(str(home), **OPTIONS)
    slow_down(made, monkeypatch)

    def fails(plan: Any) -> Any:
        raise RuntimeError("the device is gone")

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(all_of(made, "Long", LONG)) for _ in range(3)]
        await asyncio.sleep(0.1)
        monkeypatch.setattr(made._session.engine.executor, "submit", fails)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all("the device is gone" in str(error) for error in asyncio.run(main()))
    assert made.errored and not made.is_running
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(made.check_health())
    with pytest.raises(Exception, match="gone"):
        asyncio.run(all_of(made, "a", params(1)))
    made.shutdown()


def test_an_engine_that_is_forgotten_ends_by_itself(home: Path) -> None:
    made = AsyncLLM(str(home), **OPTIONS)
    thread, gone = made._engine.thread, weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_what_a_closed_loop_asked_for_is_given_up(slow: AsyncLLM) -> None:
    engine, loop = slow._session.engine, asyncio.new_event_loop()
    began = engine.num_steps
    answer = slow.generate("a", LONG, "left")
    loop.run_until_complete(anext(answer))
    loop.close()
    wait_until(lambda: engine.idle)
    assert engine.num_steps - began < LONG.max_tokens


def test_what_a_closed_loop_wants_only_the_end_of_is_given_up(slow: AsyncLLM) -> None:
    engine, loop = slow._session.engine, asyncio.new_event_loop()
    began = engine.num_steps
    wanted = LONG.clone()
    wanted.output_kind = RequestOutputKind.FINAL_ONLY
    answer = slow.generate("a", wanted, "left")

    async def begin() -> asyncio.Future[Any]:
        first = asyncio.ensure_future(anext(answer))
        while not slow._engine.in_engine:
            await asyncio.sleep(0.01)
        return first

    left = loop.run_until_complete(begin())
    loop.close()
    wait_until(lambda: engine.idle)
    assert engine.num_steps - began < LONG.max_tokens
    assert not left.done()  # its task was there all the time
    wait_until(lambda: not slow._readers)
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_another_rank_is_refused(llm: AsyncLLM) -> None:
    with pytest.raises(NotSupported, match="data_parallel_rank=1"):
        asyncio.run(all_of(llm, "a", params(1), data_parallel_rank=1))
