"""The config of a processor: the fields of Ray Data LLM's config, and two of quire's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported
from quire.options import parse_options
from quire.ray.stages import (
    ChatTemplateStageConfig,
    DetokenizeStageConfig,
    PrepareMultimodalStageConfig,
    Stage,
    TokenizerStageConfig,
    stage_of,
    warn_of_moot,
)

DATA, ERROR = "__data", "__inference_error__"  # columns: a packed row, and its error
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Packed:
    """A row on its way through the engine, which Ray carries as one object. From plain dicts it
    would build one type for the column, with the keys of all rows, which fails for some."""

    row: Row


# Kinds of tasks, with the pooling task of each. A score is the output of a one-class classifier.
TASKS = {"generate": None, "embed": "embed", "classify": "classify", "score": "classify"}


@dataclass(frozen=True, kw_only=True)
class vLLMEngineProcessorConfig:  # noqa: N801 - the name that pipelines import
    """`engine_kwargs` are options of `LLM`. With `journal` (a folder that all nodes share) and
    `id_column`, the answers of a batch that Ray runs again are read instead of computed."""

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
    # Older spellings of the stages below; None: the stage decides.
    apply_chat_template: bool | None = None
    chat_template: str | None = None
    tokenize: bool | None = None
    detokenize: bool | None = None
    has_image: bool | None = None
    chat_template_stage: Any = True
    tokenize_stage: Any = True
    detokenize_stage: Any = True
    prepare_multimodal_stage: Any = False
    journal: str | None = None
    id_column: str | None = None

    def __post_init__(self) -> None:
        if self.task_type not in TASKS:
            raise NotSupported(
                f"task_type={self.task_type!r} is not built; there are {', '.join(TASKS)}"
            )
        for kind, name in _STAGES.items():
            warn_of_moot(name, self._stage(kind))
        if self.placement_group_config is not None:
            warn("placement_group_config has no effect: a replica is one actor on one node")
        if (self.journal is None) != (self.id_column is None):
            raise InvalidOption("journal and id_column go together", parameter="journal")
        for name in ("batch_size", "max_concurrent_batches"):
            _at_least_one(name, getattr(self, name))
        low, high = self.pool
        _at_least_one("concurrency", low)
        if high < low:
            why = f"concurrency is n, or (m, n) with m <= n; here: {self.concurrency!r}"
            raise InvalidOption(why, parameter="concurrency", value=self.concurrency)
        parse_options(self.options)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the engine, without the model and the task, which Ray Data LLM adds."""
        kept = {k: v for k, v in self.engine_kwargs.items() if k not in ("model", "task_type")}
        if TASKS[self.task_type] is not None:
            kept = {"runner": "pooling", "convert": TASKS[self.task_type], **kept}
        return kept

    def adapter_path(self, row: Row) -> str | None:
        """The path of the adapter that a row names as its model; None if it names the model."""
        name = row.get("model")
        if name is None or name == self.model_source:
            return None
        folder = self.dynamic_lora_loading_path
        return str(name) if folder is None else os.path.join(folder, str(name))

    @property
    def pool(self) -> tuple[int, int]:
        """The fewest and the most actors."""
        if isinstance(self.concurrency, int):
            return self.concurrency, self.concurrency
        low, high = self.concurrency
        return low, high

    @property
    def chat(self) -> ChatTemplateStageConfig | None:
        """How messages are written out; None if rows have prompts instead."""
        stage = self._stage(ChatTemplateStageConfig)
        is_on = stage.enabled if self.apply_chat_template is None else self.apply_chat_template
        return stage if is_on else None

    @property
    def detokenizes(self) -> bool:
        """Whether tokens always become text, whatever the parameters of a row say."""
        stage = self._stage(DetokenizeStageConfig)
        return stage.enabled if self.detokenize is None else self.detokenize

    @property
    def content_format(self) -> str:
        return self._stage(PrepareMultimodalStageConfig).chat_template_content_format or "auto"

    def _stage(self, kind: type[Stage]) -> Stage:
        return stage_of(kind, _STAGES[kind], getattr(self, _STAGES[kind]))


_STAGES: dict[type[Any], str] = {
    ChatTemplateStageConfig: "chat_template_stage",
    TokenizerStageConfig: "tokenize_stage",
    DetokenizeStageConfig: "detokenize_stage",
    PrepareMultimodalStageConfig: "prepare_multimodal_stage",
}


def _at_least_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(
            f"{name} is a whole number of at least 1; here: {value!r}", parameter=name, value=value
        )
