"""The bar of a run: rows done, prompt and output tokens per second, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from quire.outputs import RequestOutput


class Progress:
    """A tqdm bar, one of the caller's own, or none. A bar of ours that cannot be written (standard
    error is closed, its disk full, its reader gone) ends, and the run goes on."""

    def __init__(self, use_tqdm: bool | Callable[..., Any], total: int | None) -> None:
        self._bar: Any = None
        self._began = time.perf_counter()
        self._prompt_tokens = self._output_tokens = 0
        self._may_fail = not callable(use_tqdm)
        if use_tqdm and not (self._may_fail and sys.stderr is None):
            from tqdm.auto import tqdm

            self._bar = self._try(
                use_tqdm if callable(use_tqdm) else tqdm,
                total=total,
                desc="Processed prompts",
                dynamic_ncols=True,
                postfix="est. speed input: 0.00 toks/s, output: 0.00 toks/s",
            )

    def __enter__(self) -> Progress:
        return self

    def update(self, output: RequestOutput) -> None:
        """One more row is done."""
        if self._bar is None:
            return
        self._prompt_tokens += output.num_prompt_tokens
        self._output_tokens += sum(len(answer.token_ids) for answer in output.outputs)
        seconds = max(time.perf_counter() - self._began, 1e-9)
        self._bar.postfix = (
            f"est. speed input: {self._prompt_tokens / seconds:.2f} toks/s, "
            f"output: {self._output_tokens / seconds:.2f} toks/s"
        )
        self._try(self._bar.update, 1)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._try(self._bar.close)

    def _try(self, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        try:
            return call(*given, **options)
        except OSError:
            if not self._may_fail:
                raise
            self._bar = None
