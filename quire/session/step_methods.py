"""Adding requests and computing them step by step: methods of LLMEngine and `llm.llm_engine`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.errors import InvalidParams, InvalidRequest
from quire.outputs import PoolingRequestOutput, RequestOutput
from quire.params.pooling import PoolingParams
from quire.params.unknown import explains_unknown_arguments
from quire.run import Refused
from quire.sampling_params import SamplingParams
from quire.session.engine_thread import Submission, read_asked
from quire.session.interrupts import CtrlC
from quire.session.pooling import task_of
from quire.session.session import Session
from quire.session.stepping import Added, Stepping


class StepMethods:
    """The part of vLLM's LLMEngine that adds requests and computes them."""

    _session: Session

    @explains_unknown_arguments
    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> str:
        """Check a prompt now and let the next steps compute it; returns its id. `step` returns its
        text so far, or what the `output_kind` of its parameters says."""
        session = self._session
        with session.turns.turn(stepping=True):
            stepping = session.turns.stepping
            if not isinstance(request_id, str) or (stepping and stepping.has(request_id)):
                raise InvalidRequest(
                    f"request_id is a text that no unfinished request has, not {request_id!r}",
                    parameter="request_id",
                    value=request_id,
                )
            if not isinstance(params, SamplingParams | PoolingParams):
                raise InvalidParams(
                    f"params is a SamplingParams or a PoolingParams, not {type(params).__name__}",
                    parameter="params",
                    value=params,
                )
            pooled = params.checked_copy() if isinstance(params, PoolingParams) else None
            asked = Submission(
                prompt, params, priority, tokenization_kwargs, lora_request=lora_request
            )
            [made] = read_asked(session, [asked])
            if isinstance(made, Refused):
                raise made.error
            if arrival_time is not None:
                made = replace(made, arrival=arrival_time)
            if stepping is None:
                stepping = session.turns.stepping = Stepping(session.new_run(lambda: None))
            stepping.add(Added(request_id, made, pooled))
        return request_id

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """Compute one step; returns an output for each request that it changed.

        Ctrl-C is raised after the step; the next call then returns its outputs, too.
        """
        session = self._session
        with session.turns.turn(stepping=True), CtrlC() as ctrl_c:
            if (stepping := session.turns.stepping) is None:
                return []
            try:
                stepping.compute()
            except BaseException:
                session.turns.stepping = None  # the engine was emptied
                raise
            ctrl_c.check()
            made = stepping.take()
            if stepping.is_over():
                session.turns.stepping = None
        return [self._output(added, output) for added, output in made]

    def _output(
        self, added: Added, output: RequestOutput
    ) -> RequestOutput | PoolingRequestOutput[Any]:
        if added.pooled is None:
            return output
        pooling = self._session.pooling
        task = pooling.check(task_of(None, added.pooled))
        [wanted] = pooling.asked(added.pooled, task, 1)
        return pooling.request_output(output, wanted)

    def abort_request(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """Cancel requests: they get no more outputs. Unknown or finished ids are ignored."""
        turns = self._session.turns
        with turns.turn(stepping=True):
            if (stepping := turns.stepping) is None:
                return
            stepping.abort([request_id] if isinstance(request_id, str) else list(request_id))
            if stepping.is_over():
                turns.stepping = None

    def get_num_unfinished_requests(self) -> int:
        stepping = self._session.turns.stepping
        if stepping is not None:
            return stepping.num_unfinished
        return self._session.engine.scheduler.num_unfinished

    def has_unfinished_requests(self) -> bool:
        return self.get_num_unfinished_requests() > 0
