"""States that layers keep beside keys and values: copied between quire's blocks and the cache
layers of Transformers.

The size of a state does not depend on the length of the text. A block holds the states after the
last token that was written in it (layers/kv_groups.py), as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quire.backends.states import StateBlocks
from quire.models.fallback.seen import StateShape

_Number = tuple[int, bool, int]  # layer, and `recurs` and `number` of a StateShape


def cache_layers(config: Any) -> list[Any]:
    """New cache layers of Transformers for this config; [] if no layer keeps a state."""
    try:
        layers = list(DynamicCache(config=config).layers)
    except (AttributeError, KeyError, TypeError, ValueError):
        return []  # Transformers has no such cache for this config: the class has its own
    return layers if any(map(_keeps_state, layers)) else []


def states_seen(layers: Sequence[Any]) -> tuple[tuple[StateShape, ...], ...]:
    """The shapes of the states that each layer keeps after a pass."""
    return tuple(
        tuple(
            StateShape(recurs, number, tuple(state.shape))
            for recurs in (False, True)
            for number, state in _states(layer, recurs=recurs).items()
            if state is not None
        )
        if _keeps_state(layer)
        else ()
        for layer in layers
    )


class KeptStates:
    """Reads the states of a model from blocks and writes them there."""

    def __init__(self, config: Any, shapes: Sequence[Sequence[StateShape]]) -> None:
        self._config, self._shapes = config, shapes
        # Set when states are first stored, which the texts of the trial do before all others.
        self._dtypes: dict[_Number, torch.dtype] = {}

    def fresh(self) -> list[Any]:
        """Empty layers, for the first tokens of a text."""
        return cache_layers(self._config)

    def load(self, layers: Sequence[Any], layer: int, pool: Tensor, blocks: Sequence[int]) -> None:
        """Read a layer's states from `blocks`, one for each sequence, of its pool
        [2, N, kv_heads, S, D]."""
        shapes = self._shapes[layer]
        sizes = [torch.Size(one.shape).numel() for one in shapes]
        held = StateBlocks(pool[0], pool[1], sum(sizes))
        numbers = held.load(torch.tensor(blocks, device=pool.device), 0, sum(sizes))
        to = layers[layer]
        for one, part in zip(shapes, torch.split(numbers, sizes, dim=1), strict=True):
            whole = part.reshape(len(blocks) * one.shape[0], *one.shape[1:])
            state = whole.to(self._dtypes[layer, one.recurs, one.number], copy=True)
            _states(to, recurs=one.recurs)[one.number] = state
            to.has_previous_state[one.number] = True
            if one.recurs:
                to.is_recurrent_states_initialized[one.number] = True
            else:
                to.is_conv_states_initialized[one.number] = True
                to.conv_kernel_size[one.number] = state.shape[-1]
                to.dtype, to.device = state.dtype, state.device

    def store(self, layers: Sequence[Any], layer: int, pool: Tensor, blocks: Sequence[int]) -> None:
        """Write a layer's states to `blocks`, one for each sequence."""
        numbers = []
        for one in self._shapes[layer]:
            state = _states(layers[layer], recurs=one.recurs)[one.number]
            self._dtypes[layer, one.recurs, one.number] = state.dtype
            numbers.append(state.reshape(len(blocks), -1).float())
        joined = torch.cat(numbers, dim=1)
        held = StateBlocks(pool[0], pool[1], joined.shape[1])
        held.store(torch.tensor(blocks, device=pool.device), 0, joined)


def _keeps_state(layer: Any) -> bool:
    """Seen by an attribute: the class is newer than Transformers 5.3, states by number than 5.10.
    Older forms of states are not known here, and a model that needs one is refused."""
    return isinstance(getattr(layer, "recurrent_states", None), dict)


def _states(layer: Any, *, recurs: bool) -> dict[int, Any]:
    """The states by number; None for one that is not kept yet."""
    states: dict[int, Any] = layer.recurrent_states if recurs else layer.conv_states
    return states
