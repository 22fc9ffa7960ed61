"""EngineArgs: the options as an object, for scripts that make one first and the LLM later."""

from __future__ import annotations

import dataclasses
import json
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from typing import TYPE_CHECKING, Any, Self

from quire.errors import InvalidOption
from quire.options.checks import text
from quire.options.parse import Options, parse_options
from quire.options.table import OPTIONS
from quire.params.unknown import names_unknown


class _EngineArgs:
    """A model and every option of the table, checked when made.

    `LLM.from_engine_args(args)` and `LLM(**dataclasses.asdict(args))` both make the LLM.
    """

    model: str

    def __post_init__(self) -> None:
        self.model = text("model", self.model)
        self.parsed()

    def given(self) -> dict[str, Any]:
        """The model, and the options that differ from their defaults: what LLM is called with."""
        values = {name: getattr(self, name) for name in OPTIONS}
        set_ones = {name: v for name, v in values.items() if not OPTIONS[name].is_default(v)}
        return {"model": self.model, **set_ones}

    def parsed(self) -> Options:
        options = self.given()
        del options["model"]
        return parse_options(options)

    def __repr__(self) -> str:
        shown = self.given()
        if "hf_token" in shown:
            shown["hf_token"] = "..."
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @classmethod
    def from_cli_args(cls, args: Any) -> Self:
        """From an argparse Namespace, leaving aside what is not an option."""
        values = {k: v for k, v in vars(args).items() if k in OPTIONS or k == "model"}
        if values.get("model") is None:
            raise InvalidOption("the arguments name no model: add --model.", parameter="model")
        return cls(**values)

    @staticmethod
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        """Adds --model and a flag for every option: --max-model-len 4096, --no-enforce-eager,
        --enable-prefix-caching (or with true or false behind it)."""
        parser.add_argument("--model", default=None)
        for name, option in OPTIONS.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(option.default, bool):
                parser.add_argument(flag, action=BooleanOptionalAction, default=option.default)
            elif option.is_flag:  # of three: unset is what quire chooses
                parser.add_argument(flag, nargs="?", const=True, type=_value, default=None)
                parser.add_argument(
                    f"--no-{flag[2:]}", dest=name, action="store_false", default=SUPPRESS
                )
            else:
                parser.add_argument(flag, type=_value, default=option.default)
        return parser


def _value(word: str) -> Any:
    """A flag's word as JSON where it reads as JSON: 0.5, true, {"a": 1}; else as it stands."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _field(name: str) -> tuple[str, Any, Any]:
    default = OPTIONS[name].default
    if isinstance(default, list | dict | set):
        return name, Any, dataclasses.field(default_factory=lambda: type(default)(default))
    return name, Any, dataclasses.field(default=default)


if TYPE_CHECKING:

    class EngineArgs(_EngineArgs):
        def __init__(self, model: str, **options: Any) -> None: ...

else:
    EngineArgs = names_unknown(
        dataclasses.make_dataclass(
            "EngineArgs",
            [("model", str), *map(_field, OPTIONS)],
            bases=(_EngineArgs,),
            namespace={"__module__": __name__, "__doc__": _EngineArgs.__doc__},
            repr=False,
        )
    )
AsyncEngineArgs = EngineArgs
