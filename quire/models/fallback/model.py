"""A causal model of Transformers as a Model (models/model.py).

A pass is computed in one of three ways. Where every layer calls the attention interface in a way
that quire's kernels can compute, one call computes all sequences side by side. Else each sequence
is a row of its own with Transformers' attention, over keys and values (and states) that are copied
from and to quire's blocks; several sequences are padded for one call where that comes out right. A
model that keeps anything else between tokens gets the whole text of each sequence in every pass,
and the blocks hold token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from quire.backends.ops import HeadShape, Kernels
from quire.layers.attention import Kind, Pass, attention_inputs
from quire.layers.batch import Batch
from quire.layers.kv_groups import KVGroup
from quire.layers.rotary import Turn
from quire.models.fallback.body import Body, BodyCall
from quire.models.fallback.interface import computing, configs_of, own_attention
from quire.models.fallback.kept_states import KeptStates
from quire.models.fallback.packed import PACKED, CurrentPass, PackedLayer, PackedPass
from quire.models.fallback.paged_cache import Paged, PagedCache
from quire.models.fallback.seen import Seen
from quire.models.fallback.sequences import (
    APART,
    FilledUp,
    Joins,
    OneSequence,
    independent,
    joined,
    sequences_of,
)
from quire.models.model import KVCache

Ends = Sequence[tuple[OneSequence, int]]  # of each sequence one token, by index


@dataclass(frozen=True, slots=True)
class Head:
    """The number of logits, which is all that executors ask of a head."""

    out_features: int


class NoRotary:
    """No tables of angles: the module computes its own."""

    has_axes = False

    def reach(self, max_len: int) -> None:
        """Nothing to prepare."""

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        return ()


class TransformersModel:
    """Token ids to hidden states, hidden states to logits."""

    def __init__(
        self,
        module: nn.Module,
        call: BodyCall,
        seen: Seen,
        kernels: Kernels,
        shape: HeadShape,
        *,
        takes_up_chunks: bool = True,
        joins: Joins = APART,
        try_capturing: Callable[[TransformersModel, HeadShape], str] | None = None,
    ) -> None:
        """`takes_up_chunks`: a text that goes on may give states several tokens at once. `joins`:
        which sequences are computed in one call."""
        self.module, self.seen, self.kernels, self._shape = module, seen, kernels, shape
        self.body = Body(module, call)
        self.head, self.rotary = Head(seen.vocab_size), NoRotary()
        self.packed = bool(seen.calls)
        self.windows = frozenset(call.window for call in seen.calls) or frozenset({None})
        self._current, self._configs = CurrentPass(), configs_of(module)
        self._takes_up_chunks, self.joins = takes_up_chunks, joins
        self._try_capturing = try_capturing
        self._states = KeptStates(module.config, seen.states)
        # (place in the KV cache, number of the layer) of layers that keep states.
        self._stateful = tuple(enumerate(seen.stateful, len(seen.attending)))
        self._groups = dict.fromkeys(range(seen.num_layers), 0)
        layers = [PackedLayer(i, c, shape, self._current) for i, c in enumerate(seen.calls)]
        self._needs_inputs = any(layer.is_plain for layer in layers)
        for part in module.modules():
            index = getattr(part, "layer_idx", None)
            if isinstance(index, int) and 0 <= index < len(layers):
                part.quire_layer = layers[index]  # type: ignore[assignment]

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The last hidden states [T, H]. Of each layer the cache is [2, N, kv_heads, S, D]."""
        if self.packed:
            return self._side_by_side(batch, cache)
        with computing(self._configs, attention=own_attention(self._configs)):
            parts = list(self._parts(list(sequences_of(batch)), cache))
        made = parts[0][1].new_zeros(len(batch.token_ids), self.seen.hidden_size)
        for lines, hidden in parts:
            made[lines] = hidden
        return made

    def _parts(
        self, sequences: Sequence[OneSequence], cache: KVCache
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Hidden states of some tokens of a pass, and the indices of those tokens."""
        kind = {"stateful": bool(self.seen.stateful), "whole": self.seen.is_whole}
        compute = self._whole_texts if self.seen.is_whole else self._new_tokens
        for run in independent(sequences, self._shape.block_size):
            for turn in zip_longest(*map(self._pieces, run)):
                pieces = [piece for piece in turn if piece is not None]
                for some in joined(pieces, self.joins, **kind):
                    yield [line for one in some for line in one.lines], compute(some, cache)

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """As `__call__`, with the attention planned already. Only for side by side."""
        work = PackedPass(cache, shared.attention, None)
        return self.packed_pass(token_ids, shared.positions, work)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(Kind(0, window, self._shape) for window in self.windows)

    @property
    def state_tables(self) -> frozenset[int]:
        return frozenset()  # the kernels compute none of the states here

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """Assign layers to groups. Groups may not have windows: a sequence that is computed by
        itself reads all its blocks, and the masks of Transformers hide what is behind a window."""
        windows = [group for group in groups if group.window is not None and not group.is_state]
        if windows or (self.packed and len(groups) > 1):
            raise RuntimeError(f"a model of Transformers has no groups by windows, got {groups}.")
        self._groups = {layer: i for i, group in enumerate(groups) for layer in group.layers}

    @property
    def dtype(self) -> torch.dtype:
        return self._shape.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        return self._shape.kv_dtype

    def tensors(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    def why_not_captured(self) -> str:
        if self._try_capturing is None:
            return "its passes ask the host for lengths"
        return self._try_capturing(self, self._shape)

    @property
    def needs_lengths(self) -> bool:
        """Whether a pass needs the lengths of sequences on the host: on a GPU those of decode rows
        are known to the device only."""
        return not self.packed or self._needs_inputs

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.body.logits(hidden)

    def _side_by_side(self, batch: Batch, cache: KVCache) -> Tensor:
        inputs = attention_inputs(batch)
        steps = {kind: self.kernels.plan_attention(inputs, kind.window) for kind in self.kinds}
        kept = inputs if self._needs_inputs else None
        work = PackedPass(cache, steps, kept)
        return self.packed_pass(batch.token_ids, batch.positions, work)

    def packed_pass(self, token_ids: Tensor, positions: Tensor, work: PackedPass) -> Tensor:
        """All sequences side by side, in one call."""
        self._current.now = work
        try:
            with computing(self._configs, attention=PACKED):
                return self.body.hidden(token_ids[None], positions[None], None)[0]
        finally:
            self._current.now = None

    def _pieces(self, sequence: OneSequence) -> Sequence[OneSequence]:
        """The parts of a sequence that are computed one after the other."""
        if not self.seen.stateful:
            return [sequence]
        # Cuts at the end of blocks: a block must hold the states after its last token, from which
        # other sequences may go on.
        start, end, size = sequence.start, sequence.end, self._shape.block_size
        cuts = [start, *range(start // size * size + size, end, size), end]
        if not self._takes_up_chunks:
            whole = cuts[0 if start else 1]
            cuts = [*range(start, whole, size), *range(whole, end + 1)]
        return [sequence.piece(first - start, last - start) for first, last in pairwise(cuts)]

    def _new_tokens(self, sequences: Sequence[OneSequence], cache: KVCache) -> Tensor:
        """Hidden states of the new tokens, one sequence after the other, with what their blocks
        hold. Where layers keep states, the new tokens of a sequence are within a block."""
        stateful = bool(self.seen.stateful)
        filled = FilledUp.of(sequences, in_front=stateful)
        layers = self._states.fresh() if stateful else ()
        if filled.past:
            self._move(
                self._states.load, layers, cache, [(one, one.start - 1) for one in sequences]
            )
        # Layers that keep keys and values have the first places in the cache.
        paged = dict(zip(self.seen.attending, self._paged(filled, cache), strict=False))
        kept = PagedCache(paged, filled.past, layers)
        if filled.is_plain:
            made = self.body.hidden(filled.ids, None, kept)
        else:
            # With states alone there is no past of keys to mask.
            mask = filled.mask if paged or not filled.past else None
            made = self.body.hidden(filled.ids, filled.positions, kept, mask)
        self._move(self._states.store, layers, cache, [(one, one.end - 1) for one in sequences])
        return made[filled.is_new]

    def _whole_texts(self, sequences: Sequence[OneSequence], cache: KVCache) -> Tensor:
        """As `_new_tokens`, by computing the whole texts again."""
        filled = FilledUp.of(sequences)
        paged = next(self._paged(filled, cache))
        known = zip(sequences, paged.exchange_tokens(filled.ids), strict=True)
        texts = [row[filled.past - one.start :][: one.end] for one, row in known]
        made = self.body.hidden(pad_sequence(texts, batch_first=True), None, None)
        return torch.cat([made[i, one.start : one.end] for i, one in enumerate(sequences)])

    def _paged(self, filled: FilledUp, cache: KVCache) -> Iterator[Paged]:
        """Keys and values of the sequences, for each layer of the cache."""
        places = {
            group: (*filled.places(group, self._shape.block_size), filled.slots(group))
            for group in set(self._groups.values())
        }
        for layer, group in sorted(self._groups.items()):
            yield Paged(cache[layer], *places[group], filled.is_new)

    def _move(
        self, to_or_from: Callable[..., None], layers: Sequence[Any], cache: KVCache, ends: Ends
    ) -> None:
        """Load or store all layers' states after the given token of each sequence."""
        for place, layer in self._stateful:
            group, size = self._groups[place], self._shape.block_size
            blocks = [one.block_of(group, token, size) for one, token in ends]
            to_or_from(layers, layer, cache[place], blocks)
