"""What an engine reports: facts when it is ready, and metrics once a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from quire.replicas.streams import Send
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.session.session import Session


def session_facts(session: Session) -> Message:
    """How many rows it runs at once, its blocks, and its arithmetic."""
    scheduler = session.engine.scheduler
    return {
        "capacity": scheduler.rows.capacity,
        "num_blocks": scheduler.pool.num_blocks,
        "arithmetic": _arithmetic(session),
    }


def _arithmetic(session: Session) -> dict[str, Any]:
    """Options with which another machine computes the same numbers, whatever it would choose."""
    config = session.model.config
    chosen: dict[str, Any] = {"device": config.device, "batch_invariant": config.batch_invariant}
    if config.tensor_parallel_size > 1:  # it changes sums, and 8-bit scales, which are per part
        chosen["tensor_parallel_size"] = config.tensor_parallel_size
    if config.quantization is not None:
        return {**chosen, "quantization": config.quantization}
    return {**chosen, "quantization": "none", "dtype": config.dtype}


class Tally:
    """Counts what was done, and sends it once a second."""

    def __init__(self, session: Session) -> None:
        self._session, self._next = session, time.monotonic() + 1
        self._began = time.time()  # distinguishes this engine from others of a job
        self._finished = self._prompt = self._cached = self._output = 0

    def count(self, output: RequestOutput) -> None:
        self._finished += 1
        self._prompt += output.num_prompt_tokens
        self._cached += output.num_cached_tokens or 0
        self._output += sum(len(answer.token_ids) for answer in output.outputs)
        self._output += sum(score.num_tokens for score in output.continuation_scores or ())

    def tell(self, send: Send, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        self._next = now + 1
        scheduler = self._session.engine.scheduler
        send(
            {
                "kind": "metrics",
                "time": time.time(),
                "began": self._began,
                "running": scheduler.num_running,
                "waiting": len(scheduler.waiting),
                "kv_use": round(scheduler.pool.num_used / scheduler.pool.num_blocks, 4),
                "prefix_hits": round(self._cached / self._prompt, 4) if self._prompt else 0.0,
                "prompt_tokens": self._prompt,
                "output_tokens": self._output,
                "finished": self._finished,
                "steps": self._session.engine.num_steps,
                "guessed": scheduler.guesses.num_guessed,
                "accepted": scheduler.guesses.num_accepted,
            }
        )
