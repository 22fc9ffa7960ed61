"""`pooler_config`: how a model's hidden states become an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from quire.errors import InvalidOption, NotSupported
from quire.params.rules import fail

_TYPES = ("CLS", "MEAN", "LAST")
_KINDS, _FLAGS = ("pooling_type", "seq_pooling_type"), ("use_activation", "normalize")


def pooler_config(name: str, value: Any) -> dict[str, Any]:
    """The two things it may say: {"pooling_type": .., "use_activation": ..}."""
    given = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    if not isinstance(given, Mapping):
        fail(InvalidOption, name, "a dict or a PoolerConfig", value)
    found: dict[str, Any] = {}
    for key, one in given.items():
        if one is None:
            continue
        if key in _KINDS:
            kind = str(one).upper()
            if kind not in _TYPES:
                fail(InvalidOption, name, f"made with a {key} of {', '.join(_TYPES)}", one)
            found["pooling_type"] = kind
        elif key in _FLAGS:
            if not isinstance(one, bool):
                fail(InvalidOption, name, f"made with {key} True or False", one)
            found["use_activation"] = one
        else:
            raise NotSupported(
                f"{name}: {str(key)[:60]!r} is not built. It takes pooling_type (CLS, MEAN, LAST) "
                "and use_activation; a task is asked for by encode(pooling_task=...), dimensions "
                "by PoolingParams(dimensions=...)."
            )
    return found
