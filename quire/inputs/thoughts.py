"""Thoughts before an answer in a format: the grammar of the format begins after the thoughts.

If the format applied from the first token on, a model could not think before its answer, and a
model whose prompt opens the thoughts would write the answer as a part of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from quire.inputs.reasoning import pairs
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams


def after_thoughts(
    wanted: StructuredOutputsParams, prompt: str, tokenizer: Tokenizer, tag: str = ""
) -> StructuredOutputsParams:
    """The structured output of a chat, with thoughts before it if the model thinks. A choice or a
    grammar stays unchanged: these cannot include thoughts. `tag` is as in split_reasoning.
    """
    thoughts, form = _thoughts(prompt, tokenizer, tag), _format(wanted)
    if thoughts is None or form is None:
        return wanted
    whole = {"type": "sequence", "elements": [thoughts, form]}
    text = json.dumps({"type": "structural_tag", "format": whole})
    return replace(wanted, json=None, json_object=None, regex=None, structural_tag=text)


def begins_in_format(wanted: StructuredOutputsParams | None) -> bool:
    """Whether the format applies from the first token of the answer on."""
    return wanted is not None and wanted.structural_tag is None


def _thoughts(prompt: str, tokenizer: Tokenizer, tag: str) -> dict[str, Any] | None:
    """The thoughts as a part of a structural tag; None for a model without thoughts, or if the
    prompt has closed them already."""
    before = prompt.rstrip()
    template, token_to_id = tokenizer.chat_template or "", tokenizer.backend.token_to_id
    for opening, closing in pairs(tag):
        if before.endswith(opening):
            return _tag("", closing)
        knows = token_to_id(opening) is not None and token_to_id(closing) is not None
        if knows and opening in template and not before.endswith(closing):
            return {
                "type": "tags_with_separator",
                "tags": [_tag(opening, closing)],
                "separator": "",
                "stop_after_first": True,
            }
    return None


def _tag(opening: str, closing: str) -> dict[str, Any]:
    ends = [closing + blank for blank in ("\n\n", "\n", "")]
    return {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": ends}


def _format(wanted: StructuredOutputsParams) -> Any:
    """The format in the form of structural tags; None if these have no such format."""
    if wanted.json_object:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if wanted.json is not None:
        schema = json.loads(wanted.json) if isinstance(wanted.json, str) else wanted.json
        return {"type": "json_schema", "json_schema": schema}
    if wanted.regex is not None:
        return {"type": "regex", "pattern": wanted.regex}
    if wanted.structural_tag is None:
        return None
    try:
        read = json.loads(wanted.structural_tag)
    except (ValueError, RecursionError):  # refused where it is compiled
        return None
    return read.get("format") if isinstance(read, dict) else None
