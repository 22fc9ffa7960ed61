"""The signature of LLM(...), made from the one table of options."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from quire.options.table import OPTIONS


def llm_signature() -> Signature:
    """(self, model, *, option=default, ...)"""
    places = Parameter.POSITIONAL_OR_KEYWORD
    leading = [Parameter("self", places), Parameter("model", places, annotation=str)]
    options = [
        Parameter(o.name, Parameter.KEYWORD_ONLY, default=o.default, annotation=Any)
        for o in OPTIONS.values()
    ]
    return Signature([*leading, *options], return_annotation=None)
