"""EngineArgs: the options as an object, for scripts that make one first and the LLM later; and the
model's config before it is loaded."""

from __future__ import annotations

import dataclasses
import json
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

from quire.errors import InvalidOption
from quire.options.checks import text
from quire.options.options import Options
from quire.options.parse import parse_options
from quire.options.table import OPTIONS
from quire.params.unknown import explains_unknown_keywords

if TYPE_CHECKING:
    from quire.session.model_config import ModelConfig

# Short flags that scripts use for options.
SHORT = {
    "attention_config": "-ac",
    "compilation_config": "-cc",
    "data_parallel_size": "-dp",
    "enable_expert_parallel": "-ep",
    "optimization_level": "-O",
    "pipeline_parallel_size": "-pp",
    "quantization": "-q",
    "speculative_config": "-sc",
    "tensor_parallel_size": "-tp",
}
# Units after a number of tokens or bytes: --max-model-len 8k, --kv-cache-memory-bytes 2G.
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_AMOUNTS = ("kv_cache_memory_bytes", "max_model_len", "max_num_batched_tokens")
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class _EngineArgs:
    """A model and every option of the table, checked when made.

    `LLM.from_engine_args(args)` and `LLM(**dataclasses.asdict(args))` both make the LLM.
    """

    model: str | None = None  # some programs set it later

    def __post_init__(self) -> None:
        if self.model is not None:
            self.model = text("model", self.model)
        self.parsed()

    def given(self) -> dict[str, Any]:
        """The model, and the options that differ from their defaults: the arguments for LLM."""
        return {"model": text("model", self.model), **self._set_ones()}

    def _set_ones(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in OPTIONS}
        return {name: v for name, v in values.items() if not OPTIONS[name].is_default(v)}

    def parsed(self) -> Options:
        return parse_options(self._set_ones())

    def create_model_config(self) -> ModelConfig:
        """A config from the model's files and the options; weights are not read."""
        from quire.session.model_config import ModelConfig

        return ModelConfig.asked(self.given()["model"], self.parsed())

    def create_engine_config(self, *ignored: Any, **more: Any) -> AskedConfig:
        """For `from_vllm_config` of the engines; the arguments, about logging, are ignored."""
        return AskedConfig(self)

    def __repr__(self) -> str:
        shown = {"model": self.model, **self._set_ones()}
        if "hf_token" in shown:
            shown["hf_token"] = "..."
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @classmethod
    def from_cli_args(cls, args: Any) -> Self:
        """Make one from an argparse Namespace; names that are no options are ignored."""
        values = {k: v for k, v in vars(args).items() if k in OPTIONS or k == "model"}
        if values.get("model") is None:
            raise InvalidOption("the arguments name no model: add --model.", parameter="model")
        return cls(**values)

    @staticmethod
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        """Add --model and a flag for every option: --max-model-len 4096, --no-enforce-eager,
        --enable-prefix-caching (or with true or false after it), -tp 2."""
        parser.add_argument("--model", default=None)
        for name, option in OPTIONS.items():
            flag = "--" + name.replace("_", "-")
            flags = [flag, SHORT[name]] if name in SHORT else [flag]
            if isinstance(option.default, bool):
                parser.add_argument(*flags, action=BooleanOptionalAction, default=option.default)
            elif option.is_flag:  # true, false or unset; if unset quire chooses
                parser.add_argument(*flags, nargs="?", const=True, type=_value, default=None)
                parser.add_argument(
                    f"--no-{flag[2:]}", dest=name, action="store_false", default=SUPPRESS
                )
            else:
                read = _amount if name in _AMOUNTS else _value
                parser.add_argument(*flags, type=read, default=option.default)
        return parser


def _value(word: str) -> Any:
    """A flag's value as JSON if it is valid JSON (0.5, true, {"a": 1}), else as text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _amount(word: str) -> Any:
    """8k as 8000, 8K as 8192, 1.5m as 1500000; other values as in `_value`."""
    number, unit = word[:-1], word[-1:]
    if number.isdecimal() and unit in _BINARY_UNITS:
        return int(number) * _BINARY_UNITS[unit]
    if unit in _UNITS and number.replace(".", "", 1).isdecimal():
        return int(Decimal(number) * _UNITS[unit])
    return _value(word)


def _field(name: str) -> tuple[str, Any, Any]:
    default = OPTIONS[name].default
    if isinstance(default, list | dict | set):
        return name, Any, dataclasses.field(default_factory=lambda: type(default)(default))
    return name, Any, dataclasses.field(default=default)


if TYPE_CHECKING:

    class EngineArgs(_EngineArgs):
        def __init__(self, model: str | None = None, **options: Any) -> None: ...

else:
    EngineArgs = explains_unknown_keywords(
        dataclasses.make_dataclass(
            "EngineArgs",
            [("model", str, dataclasses.field(default=None)), *map(_field, OPTIONS)],
            bases=(_EngineArgs,),
            namespace={"__module__": __name__, "__doc__": _EngineArgs.__doc__},
            repr=False,
        )
    )
AsyncEngineArgs = EngineArgs


@dataclasses.dataclass(frozen=True)
class AskedConfig:
    """The config of an engine that is not made yet: of its model, and the options as given."""

    engine_args: _EngineArgs

    @property
    def model_config(self) -> ModelConfig:
        return self.engine_args.create_model_config()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is decided when the engine is made: LLM.from_engine_args(...) has it in "
            "llm_engine.vllm_config. Before, there are engine_args and model_config."
        )


def given_args(vllm_config: Any) -> Any:
    """The EngineArgs that `create_engine_config` was called on."""
    if not isinstance(vllm_config, AskedConfig):
        raise InvalidOption(
            "vllm_config is what EngineArgs(...).create_engine_config() returns, not "
            f"{type(vllm_config).__name__}. from_engine_args takes the EngineArgs itself.",
            parameter="vllm_config",
            value=vllm_config,
        )
    return vllm_config.engine_args
