"""The options of LoRA adapters, and what they come to."""

from __future__ import annotations

from quire.config import AdapterOptions
from quire.errors import InvalidOption
from quire.options import checks
from quire.options.option import honoured
from quire.params.rules import fail

MAX_LORAS, MAX_RANK = 1, 16

ADAPTER_OPTIONS = (
    honoured(
        "enable_lora",
        False,
        checks.flag,
        "Whether prompts may name a LoRA adapter each (lora_request). docs/adapters.md.",
    ),
    honoured(
        "max_loras",
        MAX_LORAS,
        checks.integer(1, 1024),
        "Adapters in one batch; prompts of others wait for their turn.",
    ),
    honoured(
        "max_lora_rank",
        MAX_RANK,
        checks.integer(1, 1024),
        "The highest rank that an adapter may have; on a GPU room for it is kept in every slot.",
    ),
    honoured(
        "max_cpu_loras",
        None,
        checks.integer(1, 1 << 20),
        "Adapters kept in main memory, those used last; as many as max_loras by default.",
    ),
)


def adapter_options(
    max_loras: int, max_lora_rank: int, max_cpu_loras: int | None
) -> AdapterOptions:
    """What adapters have room for, where there are to be some."""
    kept = max_loras if max_cpu_loras is None else max_cpu_loras
    if kept < max_loras:
        hint = "Adapters of a batch are read from there."
        fail(InvalidOption, "max_cpu_loras", f"at least max_loras ({max_loras})", kept, hint)
    return AdapterOptions(max_loras, max_lora_rank, kept)
