"""The stages of Ray Data LLM by name. Their work is done inside the engine; their settings count if
they change an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from quire.base.notes import warn
from quire.errors import InvalidOption

Stage = TypeVar("Stage", bound="StageConfig")
_MOOT = ("batch_size", "concurrency", "runtime_env", "num_cpus", "memory", "model_source")


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """Settings of every stage. quire starts no workers for stages, so their sizes do nothing."""

    enabled: bool = True
    batch_size: int | None = None
    concurrency: int | tuple[int, int] | None = None
    runtime_env: Mapping[str, Any] | None = None
    num_cpus: float | None = None
    memory: float | None = None
    model_source: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChatTemplateStageConfig(StageConfig):
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerStageConfig(StageConfig):
    pass


@dataclass(frozen=True, kw_only=True)
class DetokenizeStageConfig(StageConfig):
    pass


@dataclass(frozen=True, kw_only=True)
class PrepareMultimodalStageConfig(StageConfig):
    model_config_kwargs: Mapping[str, Any] | None = None
    chat_template_content_format: str | None = None
    apply_sys_msg_formatting: bool = False


def stage_of(kind: type[Stage], name: str, given: object) -> Stage:
    """The config of a stage from what was given: a bool, a mapping, or the config itself."""
    if isinstance(given, kind):
        return given
    if isinstance(given, bool):
        return kind(enabled=given)
    if isinstance(given, Mapping):
        known = {field.name for field in fields(kind)}
        unknown = sorted(set(given) - known)
        if unknown:
            why = f"{name} has no {unknown[0]!r}; it has {', '.join(sorted(known))}"
            raise InvalidOption(why, parameter=name, value=unknown[0])
        return kind(**given)
    why = f"{name} is True, False, a dict or a {kind.__name__}; here: {given!r}"
    raise InvalidOption(why, parameter=name, value=given)


def warn_of_moot(name: str, stage: StageConfig) -> None:
    moot = [field for field in _MOOT if getattr(stage, field) is not None]
    if moot:
        warn(f"{name}: {', '.join(moot)} has no effect: the engine does this work itself")
