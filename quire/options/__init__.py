"""Options as written, and what is decided from them.

options.py declares what is honoured, table.py lists every option. parse.py reads them,
decide.py turns Options, a ModelSpec and facts (facts.py) into an EngineConfig.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.options.facts import DeviceFacts, WeightFacts
from quire.options.option import Option
from quire.options.options import Options
from quire.options.parse import parse_options
from quire.options.table import OPTIONS

if TYPE_CHECKING:
    from quire.options.decide import resolve as resolve

__all__ = [
    "OPTIONS",
    "DeviceFacts",
    "Option",
    "Options",
    "WeightFacts",
    "parse_options",
    "resolve",
]


def __getattr__(name: str) -> Any:
    """`resolve` imports models and layers, so it is imported when first asked for."""
    if name == "resolve":
        from quire.options.decide import resolve

        return resolve
    raise AttributeError(f"module 'quire.options' has no attribute {name!r}")
