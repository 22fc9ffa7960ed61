"""What a dry pass saw of a model's attention, as plain facts. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values that one layer keeps of a token."""

    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class StateShape:
    """A tensor that a layer keeps of a sequence, of one shape however long that is: what its
    convolutions still see, or what recurs. A layer may keep several of either kind, by number."""

    recurs: bool
    number: int
    shape: tuple[int, ...]


# Of a token's number: its bytes, which every type of float holds.
TOKEN_SLOT = KvShape(1, 4, 4)
# Where layers keep states alone: tokens that a block stands for, and the heads that it is cut into.
STATE_TOKENS, STATE_HEAD = 256, 64


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
    else a sequence is computed at a time, and `why_rows` says why. `kept` and `states` are what
    layers kept; if nothing that quire could hold, a slot holds its token, and every pass computes a
    whole text."""

    kept: tuple[KvShape | None, ...]  # None: a layer that keeps no keys and values
    calls: tuple[AttentionCall, ...]
    why_rows: str
    hidden_size: int
    vocab_size: int
    states: tuple[tuple[StateShape, ...], ...] = ()  # none of a layer that keeps no state

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that keep keys and values. Theirs are the first places in the KV cache."""
        return tuple(layer for layer, kv in enumerate(self.kept) if kv is not None)

    @property
    def stateful(self) -> tuple[int, ...]:
        """The layers that keep states, of which each has a place behind those."""
        return tuple(layer for layer, shapes in enumerate(self.states) if shapes)

    @property
    def is_whole(self) -> bool:
        """Whether every pass computes whole texts."""
        return not self.attending and not self.stateful

    @property
    def num_layers(self) -> int:
        """Layers of the KV cache."""
        return len(self.attending) + len(self.stateful) or 1

    @property
    def state_numbers(self) -> int:
        """Of the layer that keeps most."""
        return max((sum(prod(one.shape) for one in shapes) for shapes in self.states), default=0)

    @property
    def pool(self) -> KvShape:
        """What a slot of the KV cache must hold for any layer, whichever way it is computed."""
        if self.is_whole:
            return TOKEN_SLOT
        shapes = [kv for kv in (*self.kept, *(call.kv for call in self.calls)) if kv is not None]
        if not shapes:
            heads = -(-self.state_numbers // (2 * STATE_TOKENS * STATE_HEAD))
            return KvShape(heads, STATE_HEAD, STATE_HEAD)
        return KvShape(
            max(shape.num_heads for shape in shapes),
            max(shape.key_dim for shape in shapes),
            max(shape.value_dim for shape in shapes),
        )
