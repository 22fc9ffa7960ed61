"""Every option an LLM takes: honoured, moot or refused, with its default and the reason.

Nothing that changes results is ever moot. The table is rendered into docs/api.md.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from quire.options import checks
from quire.options.moot import MOOT
from quire.options.option import Kind, Option
from quire.options.options import Options
from quire.options.refused import REFUSED

# Further values that ask for nothing new, and checks of options that are not honoured.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "config_format": ("hf",),
    "enable_sleep_mode": (True,),
}
_CHECKED = {
    "pipeline_parallel_size": checks.integer(1, 2**20),
    "enable_chunked_prefill": checks.flag,
    "disable_log_stats": checks.flag,
    "scheduling_policy": checks.choice("fcfs", "priority"),
}


def _table() -> dict[str, Option]:
    options = [Option(one.name, "honoured", **one.metadata) for one in fields(Options)]
    kinds: dict[Kind, dict[str, dict[str, Any]]] = {"moot": MOOT, "refused": REFUSED}
    for kind, groups in kinds.items():
        for why, defaults in groups.items():
            for name, default in defaults.items():
                check, harmless = _CHECKED.get(name), _HARMLESS.get(name, ())
                options.append(Option(name, kind, default, why, check, harmless))
    return {option.name: option for option in options}


OPTIONS: dict[str, Option] = _table()
