"""Renders docs/api.md from the tables in the code: `python -m docs.render_api`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import quire
from quire.options import OPTIONS
from quire.param_rules import PARAMS_STATUS
from quire.sampling_params import SamplingParams

PAGE = Path(__file__).with_name("api.md")

INTRODUCTION = """\
# The public API

A script for vLLM's offline API runs with `from quire import LLM, SamplingParams` and nothing
else changed. This page is made by `python -m docs.render_api` from the tables the code itself
uses; a test keeps it so.

Every option and parameter is one of three:

- **honoured**: it does what it says;
- **moot**: accepted, with one warning when set, because it changes speed or logging alone;
- **refused**: `NotSupported` when set to anything but its default, naming what to do instead.

An unknown option is an error that suggests the nearest known one, and an unknown parameter is a
TypeError. `None` always stands for the default. A value that breaks a rule raises
`InvalidOption` or `InvalidParams` (both are ValueErrors, with `.parameter` and `.value`).
"""

MODULES = """\
Each is also importable from the module of the same name as vLLM's: `quire.sampling_params`,
`quire.outputs`, `quire.inputs`, `quire.logprobs`, `quire.pooling_params`,
`quire.lora.request`, `quire.tokenizers`, `quire.renderers.hf`, and `quire.exceptions`, where
`VLLMValidationError` is `InvalidRequest`.
"""


def render() -> str:
    """The whole page."""
    honoured = [o for o in OPTIONS.values() if o.kind == "honoured"]
    rest = [o for o in OPTIONS.values() if o.kind != "honoured"]
    defaults = {f.name: f.default for f in dataclasses.fields(SamplingParams)}
    parts = [
        INTRODUCTION,
        "## Names in `quire`\n\n" + ", ".join(f"`{n}`" for n in sorted(quire.__all__)) + ".\n",
        MODULES,
        "## Options of `LLM(model, ...)` that are honoured\n",
        _table(
            ("option", "default", "meaning"),
            ((f"`{o.name}`", _code(o.default), o.why) for o in honoured),
        ),
        "## Options that are moot or refused\n",
        _table(
            ("option", "default", "", "reason, or what to do instead"),
            ((f"`{o.name}`", _code(o.default), o.kind, o.why) for o in rest),
        ),
        "## Parameters of `SamplingParams`\n",
        _table(
            ("parameter", "default", "", "meaning"),
            (
                (f"`{n}`", _code(defaults[n]), PARAMS_STATUS[n].kind, PARAMS_STATUS[n].why)
                for n in SamplingParams.__struct_fields__
            ),
        ),
    ]
    return "\n".join(parts)


def _code(value: Any) -> str:
    return f"`{value}`" if isinstance(value, quire.RequestOutputKind) else f"`{value!r}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in c)} |\n" for c in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
