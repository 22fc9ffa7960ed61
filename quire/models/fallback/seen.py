"""What a dry pass saw of a model's attention, as plain facts. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values that one layer keeps of a token."""

    num_heads: int
    key_dim: int
    value_dim: int


# Of a token's number: its bytes, which every type of float holds.
TOKEN_SLOT = KvShape(1, 4, 4)


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
    else a sequence is computed at a time, and `why_rows` says why. `kept` is there if layers kept
    keys and values and nothing beside; else a slot holds its token, and every pass computes a
    whole text."""

    kept: tuple[KvShape | None, ...]  # None: a layer that keeps nothing
    calls: tuple[AttentionCall, ...]
    why_rows: str
    hidden_size: int
    vocab_size: int

    @property
    def num_layers(self) -> int:
        """Layers of the KV cache."""
        return len(self.kept) or 1

    @property
    def pool(self) -> KvShape:
        """What a slot of the KV cache must hold for any layer, whichever way it is computed."""
        if not self.kept:
            return TOKEN_SLOT
        shapes = [kv for kv in (*self.kept, *(call.kv for call in self.calls)) if kv is not None]
        return KvShape(
            max(shape.num_heads for shape in shapes),
            max(shape.key_dim for shape in shapes),
            max(shape.value_dim for shape in shapes),
        )
