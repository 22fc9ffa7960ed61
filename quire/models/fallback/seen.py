"""What a dry pass recorded of a model's layers, as plain data without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class KvShape:
    """The keys and values that one layer keeps for one token."""

    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class StateShape:
    """A tensor that a layer keeps for a sequence of any length: inputs that a convolution still
    needs, or a recurrent state (`recurs`). A layer may have several of each, by number."""

    recurs: bool
    number: int
    shape: tuple[int, ...]


# For token ids: an id is kept as 4 bytes, which every float type represents exactly.
TOKEN_SLOT = KvShape(1, 4, 4)
# For models that keep states alone: tokens per block, and the size of a head of the cache.
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
    """What the layers of a model did in a dry pass, by their layer_idx.

    `calls` is empty if some layer called attention in a way that quire's kernels cannot compute;
    then a sequence is computed at a time, and `why_rows` is the reason. `kept` and `states` are
    what the layers kept. If that is nothing that quire can hold, a slot holds a token id, and every
    pass computes whole texts."""

    kept: tuple[KvShape | None, ...]  # None: a layer that keeps no keys and values
    calls: tuple[AttentionCall, ...]
    why_rows: str
    hidden_size: int
    vocab_size: int
    states: tuple[tuple[StateShape, ...], ...] = ()  # an empty tuple for a layer without states

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that keep keys and values. They come first in the KV cache."""
        return tuple(layer for layer, kv in enumerate(self.kept) if kv is not None)

    @property
    def stateful(self) -> tuple[int, ...]:
        """The layers that keep states. They come after the others in the KV cache."""
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
        """The size of the largest layer's states."""
        return max((sum(prod(one.shape) for one in shapes) for shapes in self.states), default=0)

    @property
    def pool(self) -> KvShape:
        """What a slot of the KV cache must hold for any layer, however the model is computed."""
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
