"""What a dry pass saw of a model's attention, as plain facts. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values that one layer keeps of a token."""

    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """How one layer called the attention interface."""

    num_heads: int
    kv: KvShape
    scale: float
    window: int | None  # how many tokens back a query sees, itself included; None = all
    softcap: float | None
    has_sinks: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model's layers did in a dry pass, by the number each gives itself.

    `calls` is there if every layer called the interface in a way that quire's attention computes;
    `why_rows` says why not, and then a sequence is computed at a time."""

    kept: tuple[KvShape | None, ...]  # None: a layer that keeps nothing
    calls: tuple[AttentionCall, ...]
    why_rows: str
    hidden_size: int
    vocab_size: int

    @property
    def pool(self) -> KvShape:
        """What a slot of the KV cache must hold for any layer, whichever way it is computed."""
        shapes = [kv for kv in (*self.kept, *(call.kv for call in self.calls)) if kv is not None]
        return KvShape(
            max(shape.num_heads for shape in shapes),
            max(shape.key_dim for shape in shapes),
            max(shape.value_dim for shape in shapes),
        )
