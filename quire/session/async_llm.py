"""AsyncLLM: the engine on a thread of its own, for any number of tasks of event loops.

The thread (session/engine_thread.py) runs the same loop as LLM. All outputs that came while a task
was slow to read are joined into one, so none pile up. Only this file uses asyncio.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from quire.base.boundary import for_row
from quire.errors import EngineError, InvalidParams, InvalidRequest, NotSupported, QuireError
from quire.inputs.parse import has_media
from quire.options import parse_options
from quire.outputs import PoolingRequestOutput, RequestOutput
from quire.params.pooling import PoolingParams
from quire.params.unknown import explains_unknown_arguments
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.controls import PROFILE, not_built
from quire.session.engine_thread import EngineThread, News, Submission
from quire.session.lists_attributes import ListsAttributes
from quire.session.model_config import ModelConfig
from quire.session.pooling import task_of
from quire.session.session import Session
from quire.session.views import MadeOfArgs, VllmConfigView


class _Reader:
    """The event-loop side of one request: keeps its outputs until its task reads them."""

    def __init__(self, asked: Submission, readers: dict[str, _Reader]) -> None:
        self.asked, self._readers = asked, readers
        readers[asked.request_id] = self
        self.loop = asyncio.get_running_loop()
        self._only_new = asked.params.output_kind is RequestOutputKind.DELTA
        self._ready = asyncio.Event()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None

    def deliver(self, news: RequestOutput | BaseException) -> None:
        if isinstance(news, BaseException):
            self._error = news
        else:
            joined = for_row("its outputs were joined", self._joined, news)
            if isinstance(joined, QuireError):  # raised in its task, which would else wait for ever
                self._error = joined
            else:
                self._output = joined
        self._ready.set()

    def leave(self) -> None:
        """Its task reads no more. A second call does nothing."""
        if self._readers.get(self.asked.request_id) is self:
            del self._readers[self.asked.request_id]

    def _joined(self, news: RequestOutput) -> RequestOutput:
        if self._output is None:
            return news
        return self._output.followed_by(news, only_new=self._only_new)

    async def next(self) -> RequestOutput:
        """All outputs since the last call, joined into one."""
        await self._ready.wait()
        self._ready.clear()
        output, self._output = self._output, None
        if output is None or output.error is not None:
            raise (output.error if output is not None else self._error) or EngineError("no output")
        if self._error is not None:
            self._ready.set()  # the error is raised by the next call
        return output


LOOKERS = 4  # threads that check the headers of media
_REST = "An engine that serves many does not rest: shut it down, or use LLM."
_LORA = "Pass lora_request to generate(); an adapter is loaded with the first that names it."


class NotBuiltAsyncMethods:
    """Methods of vLLM's AsyncLLM that raise NotSupported."""

    sleep = not_built("sleep", _REST)
    wake_up = not_built("wake_up", _REST)
    is_sleeping = not_built("is_sleeping", _REST)
    pause_generation = not_built("pause_generation", _REST)
    resume_generation = not_built("resume_generation", _REST)
    reset_prefix_cache = not_built("reset_prefix_cache", "Give prompts another cache_salt.")
    reset_mm_cache = not_built("reset_mm_cache", "Media are known by their bytes.")
    add_lora = not_built("add_lora", _LORA)
    remove_lora = not_built("remove_lora", _LORA)
    pin_lora = not_built("pin_lora", _LORA)
    list_loras = not_built("list_loras", _LORA)
    collective_rpc = not_built("collective_rpc", "Use LLM.collective_rpc.")
    start_profile = not_built("start_profile", PROFILE)
    stop_profile = not_built("stop_profile", PROFILE)


class AsyncLLM(MadeOfArgs, NotBuiltAsyncMethods, ListsAttributes):
    """A model that answers many tasks at once and streams what it writes.

    >>> llm = AsyncLLM("smollm2")
    >>> async for output in llm.generate("The sea", SamplingParams(max_tokens=8), "request-1"):
    ...     print(output.outputs[0].text)

    Outputs hold all the text so far, or what is new where the parameters have
    `output_kind=RequestOutputKind.DELTA`; the last one is `finished`. Leaving the loop early
    cancels the request. Options are those of `LLM`.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._session = Session.open(model, parse_options(options))
        self._readers: dict[str, _Reader] = {}  # by request id, while a task reads
        self._num_unnamed = 0
        self._lookers = ThreadPoolExecutor(LOOKERS, "quire-look-at-media")
        self._engine = EngineThread(self._session, _hand_over, is_left=_is_left)
        # Also at exit: no thread may compute while Python shuts down.
        self._end = weakref.finalize(self, self._engine.close)

    @explains_unknown_arguments
    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to one prompt, output by output as it grows.

        `request_id` names the request for `abort`, and comes back in its outputs. A bad prompt or
        bad parameters raise at the first step of the loop.
        """
        if data_parallel_rank:
            raise NotSupported(f"data_parallel_rank={data_parallel_rank}: there is one engine, 0.")
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise InvalidParams(
                f"sampling_params is a SamplingParams, not {type(params).__name__}",
                parameter="sampling_params",
                value=params,
            )
        asked = Submission(prompt, params, priority, tokenization_kwargs, lora_request=lora_request)
        reader = self._reader(self._new_id(request_id), asked)
        output = None
        try:
            await self._ask(asked)
            while output is None or not output.finished:
                output = await reader.next()
                yield output
        finally:
            reader.leave()
            if output is None or not output.finished:
                self._engine.give_up(reader.asked)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Cancel requests; their tasks get a last output with finish_reason "abort"."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for reader in [self._readers[name] for name in ids if name in self._readers]:
            self._engine.give_up(reader.asked)

    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str | None = None,
        *,
        lora_request: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """The result of `pooling_params.task` for one prompt: one output, with `outputs.data`."""
        pooling = self._session.pooling
        task = pooling.check(task_of(None, pooling_params))
        [wanted] = pooling.asked(pooling_params, task, 1)
        params = pooling_params.checked_copy()
        asked = Submission(prompt, params, priority, tokenization_kwargs, lora_request=lora_request)
        reader = self._reader(self._new_id(request_id), asked)
        output = None
        try:
            await self._ask(asked)
            output = await reader.next()
            yield pooling.request_output(output, wanted)
        finally:
            reader.leave()
            if output is None:
                self._engine.give_up(reader.asked)

    async def get_tokenizer(self) -> Any:
        """The tokenizer as a `transformers.PreTrainedTokenizerFast`."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters the model's makers recommend, fresh at each call."""
        return self._session.model.default_params()

    async def get_model_config(self) -> Any:
        return self.model_config

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return self._session.supported_tasks

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    @property
    def vllm_config(self) -> VllmConfigView:
        return VllmConfigView.of(self._session)

    @property
    def tokenizer(self) -> Any:
        return self._session.hf_tokenizer()

    @property
    def engine(self) -> Self:
        """Itself: older scripts read the tokenizer and the config from an engine inside it."""
        return self

    async def check_health(self) -> None:
        """Raise the error that ended the engine, if there is one."""
        if self._engine.failure is not None:
            raise self._engine.failure

    async def do_log_stats(self) -> None:
        """Does nothing: quire logs no statistics."""

    @property
    def is_running(self) -> bool:
        return self._engine.is_running

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        return self._engine.failure is not None

    @property
    def dead_error(self) -> BaseException | None:
        return self._engine.failure

    def shutdown(self, timeout: float | None = None) -> None:
        """End everything and free the memory; tasks that still read get EngineClosed. `timeout`:
        seconds to wait for the step in progress."""
        if timeout is None:
            self._end()
        elif self._end.detach() is not None:
            self._engine.close(timeout)

    def start_background_loop(self) -> None:
        """Does nothing: the loop runs from the beginning. For older scripts."""

    def shutdown_background_loop(self) -> None:
        """`shutdown`, as older scripts call it."""
        self.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _new_id(self, request_id: str | None) -> str:
        if request_id is None:
            self._num_unnamed += 1
            return f"request-{self._num_unnamed}"
        if not isinstance(request_id, str) or request_id in self._readers:
            raise InvalidRequest(
                f"request_id is a text that no running request has, not {request_id!r}",
                parameter="request_id",
                value=request_id,
            )
        return request_id

    def _reader(self, request_id: str, asked: Submission) -> _Reader:
        asked.request_id = request_id
        asked.reader = reader = _Reader(asked, self._readers)
        return reader

    async def _ask(self, asked: Submission) -> None:
        """Send a request to the engine's thread. Headers of its media are checked first, on
        another thread, because decoding one may take minutes."""
        if self._session.media.reader is not None and has_media(asked.prompt):
            look = asyncio.get_running_loop().run_in_executor
            wrong = await look(self._lookers, self._session.intake.look, asked.prompt)
            if wrong is not None:
                raise wrong
        self._engine.ask(asked)


def _hand_over(news: list[News]) -> list[Submission]:
    """Give every event loop its tasks' news, in one call each; return the requests of loops that
    were closed, whose tasks are gone. Called on the engine's thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[News]] = {}
    for one in news:
        by_loop.setdefault(one[0].reader.loop, []).append(one)
    left = list[Submission]()
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, some)
        except RuntimeError:  # what a closed loop raises
            for asked, _ in some:
                asked.reader.leave()  # it may hold its task, which would never leave by itself
                left.append(asked)
    return left


def _is_left(asked: Submission) -> bool:
    return bool(asked.reader.loop.is_closed())


def _deliver(news: list[News]) -> None:
    for asked, one in news:
        asked.reader.deliver(one)


AsyncLLMEngine = AsyncLLM  # the older name
