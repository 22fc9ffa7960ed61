"""The error of requests whose engine ended while it answered them."""

from __future__ import annotations

from quire.openai_api.errors import NO_RETRY, SERVER, ApiError
from quire.replicas.suspects import Death


class EngineDied(ApiError):
    """`death` is for batches, which look for the row that caused it."""

    def __init__(self, death: Death) -> None:
        text = "the engine failed while it answered; try again"
        super().__init__(500, text, code="engine_crash", type=SERVER, headers=NO_RETRY)
        self.death = death
