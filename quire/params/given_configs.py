"""Objects that scripts make for an option of LLM. They keep what they are given; what becomes of
it, the option says (docs/api.md): a warning, or NotSupported."""

from __future__ import annotations

from typing import Any


class _GivenConfig:
    def __init__(self, *given: Any, **settings: Any) -> None:
        self.given = given
        vars(self).update(settings)

    def __repr__(self) -> str:
        shown = [*map(repr, self.given)]
        shown += [f"{name}={value!r}" for name, value in vars(self).items() if name != "given"]
        return f"{type(self).__name__}({', '.join(shown)})"


class AttentionConfig(_GivenConfig):
    """For attention_config."""


class CompilationConfig(_GivenConfig):
    """For compilation_config."""


class KVTransferConfig(_GivenConfig):
    """For kv_transfer_config."""


class ProfilerConfig(_GivenConfig):
    """For profiler_config."""


class WeightTransferConfig(_GivenConfig):
    """For weight_transfer_config."""
