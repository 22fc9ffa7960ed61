"""What a mask of Transformers hides, found by asking its function, not by reading configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# A position beyond the length of any model, and others that no chunk's size divides alike.
FAR = 1 << 28
PLACES = (0, 1, 7, 1_000, 4_095, 4_096, 123_457, FAR - 3)
NOT_A_WINDOW = -1


def window_of(shown: Callable[..., Any]) -> int | None:
    """How many tokens back a query sees by a mask function of Transformers: None for all of them,
    NOT_A_WINDOW where it is no causal mask, with or without a window."""
    try:
        return _window_of(shown)
    except (IndexError, RuntimeError, TypeError):  # it asks for more than two positions
        return NOT_A_WINDOW


def _window_of(shown: Callable[..., Any]) -> int | None:
    if not _shows(shown, FAR, FAR):
        return NOT_A_WINDOW
    window = None
    if not _shows(shown, FAR, 0):
        hidden, seen = 0, FAR
        while seen - hidden > 1:
            middle = (hidden + seen) // 2
            hidden, seen = (hidden, middle) if _shows(shown, FAR, middle) else (middle, seen)
        window = FAR - seen + 1
    return window if _is_window(shown, window) else NOT_A_WINDOW


def _is_window(shown: Callable[..., Any], window: int | None) -> bool:
    size = FAR if window is None else window
    for query in PLACES:
        for key in {query + 1, query, query - 1, query - size + 1, query - size, query // 2, 0}:
            if key >= 0 and _shows(shown, query, key) != (query - size < key <= query):
                return False
    return True


def _shows(shown: Callable[..., Any], query: int, key: int) -> bool:
    none = torch.tensor(0)
    return bool(shown(none, none, torch.tensor(query), torch.tensor(key)))
