"""A causal model of Transformers, with the face that executors know of a decoder.

Three ways through a pass. Where every layer calls the attention interface in a way that quire's
kernels compute, all sequences go side by side through one call. Else each sequence goes through
by itself with Transformers' own attention, over keys and values that are read from quire's blocks
and written there, as are states that Transformers' cache would hold; those that go on by one token
go together where that comes out right. A model that keeps anything
else between tokens is given the whole text of each sequence in every pass; the blocks then hold
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from quire.backends.ops import HeadShape, Kernels
from quire.layers.attention import Kind, Pass, attention_inputs
from quire.layers.batch import Batch
from quire.layers.kv_groups import KVGroup
from quire.layers.rotary import Turn
from quire.models.fallback.body import Body, BodyCall
from quire.models.fallback.interface import computing, configs_of, own_attention
from quire.models.fallback.kept_states import KeptStates
from quire.models.fallback.packed import PACKED, CurrentPass, PackedLayer, PackedPass
from quire.models.fallback.paged_cache import Paged, PagedCache, PagedTogether
from quire.models.fallback.seen import Seen
from quire.models.fallback.sequences import LastTokens, OneSequence, joined, sequences_of
from quire.models.model import KVCache

BlocksOf = Callable[[int], Sequence[int]]  # of a group of layers, one of each sequence


@dataclass(frozen=True, slots=True)
class Head:
    """What executors ask of a decoder's head."""

    out_features: int


class NoRotary:
    """Positions are the model's own affair: there is no table to be made."""

    has_axes = False

    def reach(self, max_len: int) -> None:
        """Any length is there."""

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
        together: bool = False,
        try_capturing: Callable[[TransformersModel, HeadShape], str] | None = None,
    ) -> None:
        """`takes_up_chunks`: states take up more tokens at once where a text goes on, too.
        `together`: of sequences that go on by one token each, several are computed in one call."""
        self.module, self.seen, self.kernels, self._shape = module, seen, kernels, shape
        self.body = Body(module, call)
        self.head, self.rotary = Head(seen.vocab_size), NoRotary()
        self.packed = bool(seen.calls)
        self.windows = frozenset(call.window for call in seen.calls) or frozenset({None})
        self._current, self._configs = CurrentPass(), configs_of(module)
        self._takes_up_chunks, self.together = takes_up_chunks, together
        self._try_capturing = try_capturing
        self._states = KeptStates(module.config, seen.states)
        # Of layers that keep states their places in the cache, and their numbers.
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
        """Hidden states of some tokens of a pass, and which those are."""
        compute = self._whole_text if self.seen.is_whole else self._tokens_of_one
        together = [one for one in sequences if self.together and one.goes_on]
        for one in sequences:
            if not (self.together and one.goes_on):
                yield list(range(one.first, one.first + len(one.token_ids))), compute(one, cache)
        for some in joined(together):
            yield [one.first for one in some], self._tokens_together(some, cache)

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The same for a pass whose attention was planned before: side by side alone."""
        work = PackedPass(cache, shared.attention, None)
        return self.packed_pass(token_ids, shared.positions, work)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset((0, window) for window in self.windows)

    @property
    def state_groups(self) -> frozenset[int]:
        return frozenset()  # of those that kernels compute

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """Layers with keys and values see all of a sequence: one that goes through by itself reads
        all its blocks, and Transformers hides what lies behind a window."""
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
        """Whether a pass asks the host for the lengths of sequences: on a GPU only the device
        knows those of decode rows."""
        return not self.packed or self._needs_inputs

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.body.logits(hidden)

    def _side_by_side(self, batch: Batch, cache: KVCache) -> Tensor:
        inputs = attention_inputs(batch)
        steps = {kind: self.kernels.plan_attention(inputs, kind[1]) for kind in self.kinds}
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

    def _tokens_of_one(self, sequence: OneSequence, cache: KVCache) -> Tensor:
        """The new tokens of a sequence, over what its blocks hold."""
        if not self.seen.stateful:
            return self._over_blocks(sequence, cache, ())
        # A block is left with the states behind its last token: others may go on from there.
        start, end, size = sequence.start, sequence.end, self._shape.block_size
        cuts = [start, *range(start // size * size + size, end, size), end]
        if not self._takes_up_chunks:
            whole = cuts[0 if start else 1]
            cuts = [*range(start, whole, size), *range(whole, end + 1)]
        pieces = (sequence.piece(first - start, last - start) for first, last in pairwise(cuts))
        return torch.cat([self._with_states(piece, cache) for piece in pieces])

    def _with_states(self, sequence: OneSequence, cache: KVCache) -> Tensor:
        """Tokens within one block, from the states behind the token before them."""
        layers, size = self._states.fresh(), self._shape.block_size
        if sequence.start:
            at = (sequence.start - 1) // size
            self._load(layers, cache, lambda group: [sequence.block(group, at)])
        made = self._over_blocks(sequence, cache, layers)
        self._store(layers, cache, lambda group: [sequence.block(group, sequence.start // size)])
        return made

    def _over_blocks(self, sequence: OneSequence, cache: KVCache, layers: Sequence[Any]) -> Tensor:
        paged = {
            layer: self._paged(place, sequence, cache)
            for place, layer in enumerate(self.seen.attending)
        }
        kept = PagedCache(paged, sequence.start, layers)
        return self.body.hidden(sequence.token_ids[None], None, kept)[0]

    def _whole_text(self, sequence: OneSequence, cache: KVCache) -> Tensor:
        """The same by computing everything anew."""
        text = self._paged(0, sequence, cache).exchange_tokens(sequence.token_ids, sequence.start)
        return self.body.hidden(text[None], None, None)[0][sequence.start :]

    def _paged(self, place: int, sequence: OneSequence, cache: KVCache) -> Paged:
        group = self._groups[place]
        count = -(-sequence.end // self._shape.block_size)
        blocks = sequence.tables[group, :count].to(torch.int64)
        return Paged(cache[place], blocks, sequence.slots[group])

    def _tokens_together(self, sequences: Sequence[OneSequence], cache: KVCache) -> Tensor:
        """The new token of each of several sequences, over what their blocks hold. [B, H]"""
        last, size = LastTokens.of(sequences), self._shape.block_size
        layers = self._states.fresh() if self.seen.stateful else ()
        self._load(layers, cache, lambda group: last.blocks_of(group, 1, size))
        attending = dict(enumerate(self.seen.attending))
        groups = {self._groups[place] for place in attending}
        places = {group: (*last.places(group, size), last.slots(group)) for group in groups}
        paged = {
            layer: PagedTogether(cache[place], *places[self._groups[place]])
            for place, layer in attending.items()
        }
        kept = PagedCache(paged, last.longest - 1, layers)
        made = self.body.hidden(last.ids, last.positions, kept, last.mask if paged else None)
        self._store(layers, cache, lambda group: last.blocks_of(group, 0, size))
        return made[:, 0]

    def _load(self, layers: Sequence[Any], cache: KVCache, blocks_of: BlocksOf) -> None:
        """Have layers that keep states go on from those in the blocks of their group."""
        for place, layer in self._stateful:
            self._states.load(layers, layer, cache[place], blocks_of(self._groups[place]))

    def _store(self, layers: Sequence[Any], cache: KVCache, blocks_of: BlocksOf) -> None:
        for place, layer in self._stateful:
            self._states.store(layers, layer, cache[place], blocks_of(self._groups[place]))
