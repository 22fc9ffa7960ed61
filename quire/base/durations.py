"""How long something took or will take, for people to read."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A duration as "7.3 s", "4 min 10 s" or "2 h 05 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"
