"""EngineArgs of programs: the options as an object, and what is known of the model before it is
loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption
from quire.options import EngineArgs as OptionArgs

if TYPE_CHECKING:
    from quire.session.model_config import ModelConfig


class EngineArgs(OptionArgs):
    __doc__ = OptionArgs.__doc__

    def create_model_config(self) -> ModelConfig:
        """What the model's files and the options say; its weights are not read."""
        from quire.session.model_config import ModelConfig

        return ModelConfig.asked(self.given()["model"], self.parsed())

    def create_engine_config(self, *ignored: Any, **more: Any) -> AskedConfig:
        """For `from_vllm_config` of the engines; what is passed is about logging."""
        return AskedConfig(self)


AsyncEngineArgs = EngineArgs


@dataclass(frozen=True)
class AskedConfig:
    """A config of an engine that is still to be made: its model's, and the options as given."""

    engine_args: EngineArgs

    @property
    def model_config(self) -> ModelConfig:
        return self.engine_args.create_model_config()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is decided when the engine is made: LLM.from_engine_args(...) has it in "
            "llm_engine.vllm_config. Before, there are engine_args and model_config."
        )


def given_args(vllm_config: Any) -> EngineArgs:
    """Of what `create_engine_config` made."""
    if not isinstance(vllm_config, AskedConfig):
        raise InvalidOption(
            "vllm_config is what EngineArgs(...).create_engine_config() returns, not "
            f"{type(vllm_config).__name__}. from_engine_args takes the EngineArgs itself.",
            parameter="vllm_config",
            value=vllm_config,
        )
    return vllm_config.engine_args
