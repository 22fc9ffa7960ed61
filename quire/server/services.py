"""The objects that routes use: the engine, the settings, the keys and the adapters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from prometheus_client.registry import Collector
from starlette.requests import Request

from quire.openai_api.asks import Row
from quire.openai_api.outputs import Output
from quire.server.adapters import RuntimeAdapters
from quire.server.keys import Keys

Lane = Literal["interactive", "batch"]
State = Literal["loading", "ready", "restarting", "draining", "failed"]
LOCAL = "local"  # the id of every caller where the server has no keys


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. `names` are the names of the model, the main one first."""

    model: str
    names: tuple[str, ...]
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    options: Mapping[str, Any] = field(default_factory=dict)  # of the engine
    lora: Mapping[str, str] = field(default_factory=dict)  # adapters: name -> path
    lora_folder: Path | None = None  # adapters in it may be loaded while the server runs
    max_queue: int = 1024  # answers of interactive requests that are running or waiting
    max_queue_tokens: int = 8 << 20  # estimated from the bytes of their bodies
    grace: float = 30.0  # seconds that running requests get when the server stops
    allowed_hosts: tuple[str, ...] = ()  # further names allowed in Host
    allowed_origins: tuple[str, ...] = ()
    vllm_metrics: bool = False  # metrics under vLLM's names too
    max_file_bytes: int = 2 << 30  # of one upload
    quota_bytes: int | None = None  # of all files of a key

    @property
    def opening(self) -> dict[str, Any]:
        """The first message to the engine's process."""
        model = {"model": self.model, "options": dict(self.options)}
        return {"kind": "open", **model, "names": self.names, "lora": dict(self.lora)}


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The state of the engine. Counters begin with the server and survive a new engine process."""

    state: State
    running: int = 0
    waiting: int = 0
    running_batch: int = 0
    waiting_batch: int = 0
    kv_use: float = 0.0
    prefix_hits: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    restarts: int = 0
    rejected: int = 0
    preemptions: int = 0
    # For each limit, how many steps had at most so many tokens; then the sum of all tokens.
    step_limits: tuple[str, ...] = ()
    step_tokens: tuple[float, ...] = ()
    # Tokens of rows on the device now; the counters above count finished rows.
    unfinished_prompt_tokens: int = 0
    unfinished_output_tokens: int = 0
    first_token_seconds: float | None = None  # the median of the last interactive requests


ROW_REFUSALS = frozenset({400, 429, 500, 503})  # of EngineClient.generate
CALL_REFUSALS = frozenset({400, 500, 503})  # of EngineClient.call


class EngineClient(Protocol):
    """The interface of the engine for routes."""

    @property
    def state(self) -> State: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts that the engine sent when it was ready (max_model_len, capacity); empty before."""

    @property
    def capacity(self) -> int:
        """Rows that run at once."""

    async def ready(self) -> None:
        """Wait until rows can be answered; ApiError 503 if they cannot."""

    def generate(
        self, row: Row, *, lane: Lane = "interactive", key_id: str = LOCAL
    ) -> AsyncGenerator[Output, None]:
        """The outputs of a row; closing the iterator gives the row up."""

    async def call(self, what: str, **given: Any) -> dict[str, Any]:
        """A call without a row: "tokenize", "detokenize", "tokenizer_info", and loading and
        unloading of adapters."""

    def stats(self) -> EngineStats: ...

    def add_metrics(self, collector: Collector) -> None:
        """Add the metrics of another part of the server."""

    def metrics_text(self) -> bytes:
        """All metrics, in the text form of Prometheus."""


@dataclass(frozen=True, slots=True)
class Services:
    """All objects that routes may use."""

    engine: EngineClient
    settings: Settings
    keys: Keys
    adapters: RuntimeAdapters = field(default_factory=RuntimeAdapters)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may give as their model."""
        return (*self.settings.names, *self.adapters.loaded)


def key_of(request: Request) -> str:
    """The id of the caller's key."""
    return str(request.scope["quire.key_id"])
