"""What each rank of a model holds: its heads, and its part of every width. Knows no torch.

Heads stay whole. With at least as many KV heads as ranks, the query heads that share a KV head stay
together, and shares may differ by one such group. With fewer KV heads than ranks, some ranks keep
the same KV head, and divide its query heads among them. Heads of states that share a key are
divided like query heads that share a KV head. Every rank has the whole embedding; the rows of the
head are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.errors import InvalidOption, NotSupported
from quire.layer_parts.state import (
    ConvolutionPlan,
    DeltaNetPlan,
    MambaPlan,
    SharedPart,
    StatePlan,
)
from quire.layer_plan import (
    AttentionPlan,
    CrossPlan,
    EmbeddingBranchPlan,
    ExpertsPlan,
    LayerPlan,
    MlpPlan,
    WholeHeads,
)
from quire.spec import ModelSpec

OPTION = "tensor_parallel_size"
# Widths are cut at multiples of TILE where there are enough: kernels multiply tiles of this size.
TILE = 128
HEAD_ROWS = 64  # each rank has a multiple of this many rows of the head


@dataclass(frozen=True, slots=True)
class RankShare:
    """Rank `rank` of `size` ranks, and which part of everything divided it has."""

    rank: int = 0
    size: int = 1

    def kv_heads(self, plan: AttentionPlan) -> range:
        """Its KV heads: of 9 query heads and 3 KV heads, rank 0 of 2 has 0 and 1, rank 1 has 2."""
        return self.keys(plan.num_kv_heads)

    def keys(self, count: int) -> range:
        """Its heads of so many that others share: its part of them, or one."""
        if self.size <= count:
            return self.equal_heads(count)
        head = self._kv_head(count)
        return range(head, head + 1)

    def equal_heads(self, count: int) -> range:
        """Its heads, for attention with as many KV heads as query heads."""
        return _cut(count, self.rank, self.size)

    def heads(self, plan: AttentionPlan) -> range:
        """The query heads of its KV heads, or its part of those of the KV head that it shares."""
        return self.heads_over(plan.num_heads, plan.num_kv_heads)

    def heads_over(self, num_heads: int, num_keys: int) -> range:
        """Its heads, of which neighbours share one of so many keys."""
        keys, per_key = self.keys(num_keys), num_heads // num_keys
        if self.size <= num_keys:
            return range(keys.start * per_key, keys.stop * per_key)
        sharing = self._sharing(num_keys)
        part = _cut(per_key, self.rank - sharing.start, len(sharing))
        return range(keys.start * per_key + part.start, keys.start * per_key + part.stop)

    def counts_kv(self, plan: AttentionPlan) -> bool:
        """Whether it is the first of the ranks that hold its KV heads."""
        kv = plan.num_kv_heads
        return self.size <= kv or self._sharing(kv).start == self.rank

    def inner(self, width: int) -> range:
        """Its part of a feed-forward's width: 1536 on 2 ranks -> 0..768."""
        tile = TILE
        while width // tile < self.size and tile > 1:
            tile //= 2
        first, last = (width // tile * at // self.size * tile for at in (self.rank, self.rank + 1))
        return range(first, width if self.rank == self.size - 1 else last)

    def head_rows(self, vocab_size: int) -> int:
        """Rows of the head on every rank; rows beyond the vocabulary are zeros."""
        return -(-vocab_size // (self.size * HEAD_ROWS)) * HEAD_ROWS

    def vocabulary(self, vocab_size: int) -> range:
        """The tokens whose rows of the head this rank holds."""
        rows = self.head_rows(vocab_size)
        return range(min(self.rank * rows, vocab_size), min((self.rank + 1) * rows, vocab_size))

    def _kv_head(self, count: int) -> int:
        """The KV head that it shares with other ranks, if there are fewer (`count`) than ranks."""
        return next(h for h in range(count) if self.rank < self.size * (h + 1) // count)

    def _sharing(self, count: int) -> range:
        """The ranks that share its KV head."""
        head = self._kv_head(count)
        return range(self.size * head // count, self.size * (head + 1) // count)


ALONE = RankShare()


def _cut(count: int, part: int, parts: int) -> range:
    return range(count * part // parts, count * (part + 1) // parts)


def of_rank(spec: ModelSpec, share: RankShare) -> ModelSpec:
    """The spec of what one rank computes. InvalidOption if the model has too little for all."""
    if share.size == 1:
        return spec
    check_ranks(spec, share.size)
    return replace(
        spec,
        layers=tuple(_layer(layer, share) for layer in spec.layers),
        tied_embeddings=False,  # its rows of the head are a tensor of their own
    )


def check_ranks(spec: ModelSpec, size: int) -> None:
    """Raise InvalidOption unless every rank gets a part of every layer."""
    for layer in spec.layers:
        for heads, keys, kind in _heads(layer):
            if -(-size // keys) > heads // keys:  # ranks that would share one
                raise InvalidOption(
                    f"{OPTION}={size} is more than {heads} heads over {keys} {kind} can be divided "
                    f"into. Use at most {heads}, or replicas of the whole model: "
                    "data_parallel_size.",
                    parameter=OPTION,
                    value=size,
                )
        for width, kind in _widths(layer):
            if width < size:
                raise InvalidOption(
                    f"{OPTION}={size} is more than {kind} of width {width} can be divided into. "
                    f"Use at most {width}.",
                    parameter=OPTION,
                    value=size,
                )


def _heads(layer: LayerPlan) -> Iterator[tuple[int, int, str]]:
    """The heads of a layer, what several of them share, and what that is called."""
    attention, state = layer.attention, layer.state
    if state is None:
        yield attention.num_heads, attention.num_kv_heads, "KV heads"
    if isinstance(state, DeltaNetPlan | MambaPlan):
        yield state.num_heads, state.num_key_heads, "keys of states"


def _widths(layer: LayerPlan) -> Iterator[tuple[int, str]]:
    """The widths of a layer that ranks divide, and what has them."""
    for plan in _feed_forwards(layer):
        yield plan.width, "a feed-forward"
    if isinstance(layer.state, ConvolutionPlan):
        yield layer.state.channels, "a convolution"


def _feed_forwards(layer: LayerPlan) -> tuple[MlpPlan, ...]:
    found: list[object] = []
    for plan in (layer.mlp, layer.beside):
        found += [plan.expert, plan.shared] if isinstance(plan, ExpertsPlan) else [plan]
    return tuple(plan for plan in found if isinstance(plan, MlpPlan))


def _divided_parts(layer: LayerPlan) -> tuple[tuple[object, tuple[type, ...]], ...]:
    """The parts of a layer, each with the classes that can be divided among ranks."""
    return (
        (layer.attention, (AttentionPlan,)),
        (layer.mlp, (MlpPlan, ExpertsPlan, type(None))),
        (layer.cross, (CrossPlan, type(None))),
        (layer.state, (DeltaNetPlan, MambaPlan, ConvolutionPlan, type(None))),
        (layer.beside, (ExpertsPlan, type(None))),
        (layer.embedding, (EmbeddingBranchPlan, type(None))),
    )


def _layer(layer: LayerPlan, share: RankShare) -> LayerPlan:
    attention, mlp = layer.attention, layer.mlp
    strange = [x for x, kinds in _divided_parts(layer) if type(x) not in kinds]
    if strange:
        named = type(strange[0]).__name__
        raise NotSupported(
            f"{OPTION}={share.size}: a layer with a {named} is not divided among ranks yet. Run "
            "replicas of the whole model: data_parallel_size."
        )
    own = replace(
        attention,
        num_heads=len(share.heads(attention)),
        num_kv_heads=len(share.kv_heads(attention)),
        whole=_whole(attention, share),
    )
    beside = None if layer.beside is None else _experts(layer.beside, share)
    state = None if layer.state is None else _state(layer.state, share)
    return replace(layer, attention=own, mlp=_mlp(mlp, share), beside=beside, state=state)


def _state(plan: StatePlan, share: RankShare) -> StatePlan:
    if isinstance(plan, ConvolutionPlan):
        return replace(plan, channels=len(share.inner(plan.channels)))
    if isinstance(plan, DeltaNetPlan) and plan.in_turn:
        raise NotSupported(
            f"{OPTION}={share.size}: this GGUF file has the heads of states in an order that is "
            "not divided among ranks. Use the model's directory (safetensors), or replicas of the "
            "whole model: data_parallel_size."
        )
    keys, heads = (
        share.keys(plan.num_key_heads),
        share.heads_over(plan.num_heads, plan.num_key_heads),
    )
    own = replace(plan, num_heads=len(heads), num_key_heads=len(keys))
    if isinstance(own, MambaPlan) and share.size > plan.num_key_heads:
        whole = plan.value_width // plan.num_key_heads
        own = replace(own, shared=SharedPart(keys.start, plan.num_key_heads, whole))
    return own


def _whole(plan: AttentionPlan, share: RankShare) -> WholeHeads | None:
    """The heads of the whole model, which only a norm over all heads must know."""
    if plan.qk_norm is None or plan.qk_norm_over != "width":
        return None
    return WholeHeads(plan.num_heads, plan.num_kv_heads, share.counts_kv(plan))


def _mlp(plan: MlpPlan | ExpertsPlan | None, share: RankShare) -> MlpPlan | ExpertsPlan | None:
    if isinstance(plan, MlpPlan):
        return replace(plan, width=len(share.inner(plan.width)))
    return None if plan is None else _experts(plan, share)


def _experts(plan: ExpertsPlan, share: RankShare) -> ExpertsPlan:
    expert = replace(plan.expert, width=len(share.inner(plan.expert.width)))
    shared = plan.shared
    if shared is not None:
        shared = replace(shared, width=len(share.inner(shared.width)))
    return replace(plan, expert=expert, shared=shared)
