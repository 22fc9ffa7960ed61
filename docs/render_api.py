"""Renders docs/api.md from the tables in the code: `python -m docs.render_api`."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import quire
from quire.options import OPTIONS
from quire.params.rules import PARAMS_STATUS
from quire.sampling_params import BeamSearchParams, SamplingParams

PAGE = Path(__file__).with_name("api.md")

INTRODUCTION = """\
# The public API

A script for vLLM's offline API runs with `from quire import LLM, SamplingParams`, without other
changes. This page is made by `python -m docs.render_api` from the tables that the code itself uses;
a test compares the two.

There are three kinds of options and parameters:

- **honoured**: it has its effect;
- **moot**: it is accepted, with one warning if it is set, since it would change only speed, memory
  or logging;
- **refused**: any value but its default raises `NotSupported`, which says what to do instead.

An unknown option or parameter raises `UnknownOption` (also a TypeError), which names the nearest
known one. `None` means an option's default. A value that breaks a rule raises `InvalidOption` or
`InvalidParams` (both are ValueErrors, with `.parameter` and `.value`).
"""

MODULES = """\
They can also be imported from modules that are named like vLLM's: `quire.sampling_params`,
`quire.outputs`, `quire.inputs`, `quire.logprobs`, `quire.params.pooling`, `quire.params.lora`,
`quire.logits_process`, `quire.v1.sample.logits_processor`, `quire.tokenizers`,
`quire.renderers.hf`, and `quire.exceptions`, where `VLLMValidationError` is `InvalidRequest`.
"""

BEAMS = {
    "beam_width": "How many beams a search keeps; 1 is greedy. Beams beyond max_num_seqs wait.",
    "max_tokens": "The most tokens of an answer; fewer if the model's length ends before.",
    "ignore_eos": "End tokens do not end an answer; the end of a grammar still does.",
    "temperature": "Has no effect, with a warning: beams are ranked by the model's own logprobs.",
    "length_penalty": "An answer's score is the sum of its logprobs / generated tokens ** this.",
    "include_stop_str_in_output": "The end token is part of `text`.",
    "structured_outputs": "The form that every beam must have; its end token is drawn and counts.",
    "early_stopping": "True: stop when beam_width answers are there; False: when none of the beams "
    'can do better at its present length; "never": when none can at any length.',
    "n": "How many of the best answers are returned; None: all. A grammar may allow fewer.",
}


def _filled(names: Iterable[str]) -> str:
    """One after the other, in lines that a terminal shows whole."""
    return textwrap.fill(", ".join(names) + ".", 100, break_long_words=False) + "\n"


def render() -> str:
    """The whole page."""
    honoured = [o for o in OPTIONS.values() if o.kind == "honoured"]
    rest = [o for o in OPTIONS.values() if o.kind != "honoured"]
    defaults = {f.name: f.default for f in dataclasses.fields(SamplingParams)}
    parts = [
        INTRODUCTION,
        "## Names in `quire`\n\n" + _filled(f"`{n}`" for n in sorted(quire.__all__)),
        MODULES,
        "## Methods of `LLM`\n",
        _table(("method", ""), _methods()),
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
    parts += ["## Fields of `BeamSearchParams`\n", _table(("field", "default", ""), _beams())]
    return "\n".join(parts)


def _beams() -> Iterator[tuple[str, ...]]:
    """Every field of a beam search; one that BEAMS does not explain is a KeyError."""
    for field in dataclasses.fields(BeamSearchParams):
        required = field.default is dataclasses.MISSING
        yield f"`{field.name}`", "required" if required else _code(field.default), BEAMS[field.name]


def _methods() -> Iterator[tuple[str, ...]]:
    """Each public method with its parameters and the first sentence about it; last those that
    are not built."""
    found = inspect.getmembers(quire.LLM, inspect.isfunction)
    public = [(name, method, inspect.getdoc(method) or "") for name, method in found]
    for name, method, about in sorted(public, key=lambda one: one[2].startswith("Not built")):
        if not name.startswith("_"):
            known = [p for p in inspect.signature(method).parameters if p != "self"]
            words = " ".join(about.split("\n\n")[0].split())
            asked = "" if words.startswith("Not built") else ", ".join(known)
            yield f"`{name}({asked})`", words


def _code(value: Any) -> str:
    return f"`{value}`" if isinstance(value, quire.RequestOutputKind) else f"`{value!r}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in c)} |\n" for c in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
