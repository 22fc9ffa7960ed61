"""Request: what was asked, as token ids. Past this door nothing is validated again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from quire.sampling_params import SamplingParams

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt with its parameters, checked and complete.

    `number` counts the requests of an LLM; `noise_key` is 64 bits made from the seed (or from
    the LLM's seed and `number`). `max_tokens` is resolved against the model's length.
    `eos_ids` end the answer without a stop reason, `stop_ids` are the caller's; both are empty
    of what `ignore_eos` took away.
    """

    number: int
    prompt_ids: Ints
    params: SamplingParams
    max_tokens: int
    noise_key: int
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    prompt: str | None = None
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str = ""

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)
