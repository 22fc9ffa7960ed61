"""What a processor may be asked for: the fields of Ray Data LLM's config, and two of quire's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported
from quire.options import parse_options

DATA, ERROR = "__data", "__inference_error__"  # columns: a packed row, and why it failed
Row = dict[str, Any]
_MOOT = "prompts are written out and tokenized inside the engine"


@dataclass(frozen=True, kw_only=True)
class vLLMEngineProcessorConfig:  # noqa: N801 - the name that pipelines import
    """`engine_kwargs` are options of `LLM`. With `journal` (a folder that all nodes share) and
    `id_column`, a batch that Ray runs again is read and not computed again."""

    model_source: str
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 64
    concurrency: int | tuple[int, int] = 1
    accelerator_type: str | None = None
    max_concurrent_batches: int = 8
    max_tasks_in_flight_per_actor: int | None = None
    max_pending_requests: int | None = None
    should_continue_on_error: bool = True
    runtime_env: Mapping[str, Any] | None = None
    task_type: str = "generate"
    log_engine_metrics: bool = True
    dynamic_lora_loading_path: str | None = None
    placement_group_config: Mapping[str, Any] | None = None
    apply_chat_template: bool | None = None
    chat_template: str | None = None
    tokenize: bool | None = None
    detokenize: bool | None = None
    has_image: bool = False
    chat_template_stage: Any = True
    tokenize_stage: Any = True
    detokenize_stage: Any = True
    prepare_multimodal_stage: Any = False
    journal: str | None = None
    id_column: str | None = None

    def __post_init__(self) -> None:
        if self.task_type != "generate":
            raise NotSupported(f"task_type={self.task_type!r} is not built: quire.ray generates")
        for name in ("dynamic_lora_loading_path", "has_image", "prepare_multimodal_stage"):
            if getattr(self, name):
                raise NotSupported(f"{name} is not built: leave it out")
        for name in ("tokenize_stage", "detokenize_stage"):
            if isinstance(getattr(self, name), Mapping):
                warn(f"{name} has no effect: {_MOOT}")
        if self.placement_group_config is not None:
            warn("placement_group_config has no effect: a replica is one actor on one node")
        if (self.journal is None) != (self.id_column is None):
            raise InvalidOption("journal and id_column go together", parameter="journal")
        for name in ("batch_size", "max_concurrent_batches"):
            _at_least_one(name, getattr(self, name))
        low, high = self.pool
        _at_least_one("concurrency", low)
        if high < low:
            raise InvalidOption(
                f"concurrency is n, or (m, n) with m <= n; here: {self.concurrency!r}",
                parameter="concurrency",
                value=self.concurrency,
            )
        parse_options(dict(self.engine_kwargs))

    @property
    def pool(self) -> tuple[int, int]:
        """The fewest and the most actors."""
        if isinstance(self.concurrency, int):
            return self.concurrency, self.concurrency
        low, high = self.concurrency
        return low, high


def _at_least_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(
            f"{name} is a whole number of at least 1; here: {value!r}", parameter=name, value=value
        )
