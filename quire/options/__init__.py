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
    from quire.options.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from quire.options.engine_args import EngineArgs as EngineArgs

__all__ = [
    "OPTIONS",
    "AsyncEngineArgs",
    "DeviceFacts",
    "EngineArgs",
    "Option",
    "Options",
    "WeightFacts",
    "parse_options",
    "resolve",
]


def __getattr__(name: str) -> Any:
    """What takes long to import comes when it is first asked for: EngineArgs has a field per
    option, and deciding takes models and their layers."""
    if name in ("EngineArgs", "AsyncEngineArgs"):
        from quire.options import engine_args

        return getattr(engine_args, name)
    if name == "resolve":
        from quire.options.decide import resolve

        return resolve
    raise AttributeError(f"module 'quire.options' has no attribute {name!r}")
