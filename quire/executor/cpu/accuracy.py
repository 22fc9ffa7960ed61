"""Measures how far 8-bit arithmetic differs from float32 on the same weights, and has the limits.

Both models read the same real text and predict every token from the true ones before it. Compared
are how well they predict (perplexity), the distance of their distributions (Kullback-Leibler
divergence), and how often their likeliest tokens are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadShape, Kernels
from quire.executor.memory import make_cache, own_caches
from quire.layers.attention import Kind, Pass, planned
from quire.layers.kv_groups import KVGroup
from quire.layers.rotary import Rotary
from quire.models.decoder import Decoder
from quire.spec import ModelSpec

MAX_PERPLEXITY = 0.01  # relative increase
MAX_DIVERGENCE = 0.01  # mean nats per token
MIN_AGREEMENT = 0.95
MIN_CLEAR_AGREEMENT = 0.99
CLEAR = 0.5  # a choice is clear if float32's two likeliest tokens are so many nats apart
# With fewer tokens than this, a share may be below its limit by its standard error.
ENOUGH_TOKENS = 1000
# At this distance (in standard errors) from a limit more text would not change the verdict.
SURE = 2.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The figures for `num_tokens` predictions."""

    num_tokens: int
    perplexity: float  # relative change: 0.003 is 0.3 % more
    divergence: float
    agreement: float
    clear_agreement: float  # of the clear choices

    @property
    def passes(self) -> bool:
        few = self.num_tokens < ENOUGH_TOKENS
        error = _error_of_share(MIN_AGREEMENT, self.num_tokens) if few else 0.0
        clear_error = _error_of_share(MIN_CLEAR_AGREEMENT, self.num_tokens) if few else 0.0
        return (
            self.perplexity <= MAX_PERPLEXITY
            and self.divergence <= MAX_DIVERGENCE
            and self.agreement >= MIN_AGREEMENT - error
            and self.clear_agreement >= MIN_CLEAR_AGREEMENT - clear_error
        )

    @property
    def text(self) -> str:
        return (
            f"perplexity {self.perplexity:+.1%}, {self.agreement:.1%} of choices the same, "
            f"KL {self.divergence:.4f} on {self.num_tokens:,} tokens"
        )


def _error_of_share(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / max(1, count))


class Tally:
    """Sums over the predictions so far."""

    def __init__(self) -> None:
        self.num_tokens = self.num_clear = self.same = self.clear_same = 0
        # Measured values need sums and sums of squares; the others are counts.
        self._surprise, self._divergence = _Mean(), _Mean()

    def add(self, truth: Tensor, ours: Tensor, theirs: Tensor) -> None:
        """Next tokens [R], and log-probabilities [R, V] of the exact and the rounded model."""
        self.num_tokens += truth.shape[0]
        there = truth[:, None]
        self._surprise.add(ours.gather(1, there) - theirs.gather(1, there))
        self._divergence.add((ours.exp() * (ours - theirs)).sum(-1))
        top = ours.topk(2)
        agrees = top.indices[:, 0] == theirs.argmax(-1)
        clear = top.values[:, 0] - top.values[:, 1] > CLEAR
        self.same += int(agrees.sum())
        self.clear_same += int((agrees & clear).sum())
        self.num_clear += int(clear.sum())

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy(
            num_tokens=self.num_tokens,
            perplexity=math.expm1(self._surprise.mean),
            divergence=self._divergence.mean,
            agreement=self.same / max(1, self.num_tokens),
            clear_agreement=self.clear_same / max(1, self.num_clear),
        )

    @property
    def is_sure(self) -> bool:
        """Whether more text would hardly change the verdict: all figures are well within their
        limits, or one is well beyond."""
        within = (
            _distance(self._surprise.mean, math.log1p(MAX_PERPLEXITY), self._surprise.error),
            _distance(self._divergence.mean, MAX_DIVERGENCE, self._divergence.error),
            -_share_distance(self.same, self.num_tokens, MIN_AGREEMENT),
            -_share_distance(self.clear_same, self.num_clear, MIN_CLEAR_AGREEMENT),
        )
        return all(d <= -SURE for d in within) or any(d >= SURE for d in within)


class _Mean:
    def __init__(self) -> None:
        self.count, self.sum, self.squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        self.count += values.numel()
        self.sum += float(values.double().sum())
        self.squares += float(values.double().square().sum())

    @property
    def mean(self) -> float:
        return self.sum / max(1, self.count)

    @property
    def error(self) -> float:
        spread = max(0.0, self.squares / max(1, self.count) - self.mean**2)
        return math.sqrt(spread / max(1, self.count))


def _distance(value: float, limit: float, error: float) -> float:
    """(value - limit) in standard errors."""
    return (value - limit) / max(error, 1e-12)


def _share_distance(hits: int, count: int, limit: float) -> float:
    # With one more hit and miss: a share of exactly 1 would have an error of 0.
    share = (hits + 1) / (count + 2)
    return _distance(share, limit, _error_of_share(share, count + 2))


@torch.inference_mode()
def compare(
    exact: Decoder, rounded: Decoder, spec: ModelSpec, windows: Sequence[Sequence[int]]
) -> Accuracy:
    """Read each window of token ids with both models, each from its first token."""
    tally = Tally()
    for window in windows:
        hidden = [hidden_states(model, spec, window) for model in (exact, rounded)]
        tally_window(tally, spec, window, (exact.logits, rounded.logits), hidden)
    return tally.accuracy


def tally_window(
    tally: Tally,
    spec: ModelSpec,
    window: Sequence[int],
    logits: Sequence[Callable[[Tensor], Tensor]],
    hidden: Sequence[Tensor],
) -> None:
    """Add the predictions of a window, a few positions at a time, as logits are large."""
    step = max(1, (1 << 24) // spec.vocab_size)
    truth = torch.tensor(window[1:], device=hidden[0].device)
    for at in range(0, truth.shape[0], step):
        piece = slice(at, min(at + step, truth.shape[0]))
        ours, theirs = (
            made(states[piece]).float().log_softmax(-1)
            for made, states in zip(logits, hidden, strict=True)
        )
        tally.add(truth[piece], ours, theirs)


def hidden_states(model: Decoder, spec: ModelSpec, window: Sequence[int]) -> Tensor:
    """The last hidden states of one text, computed in a cache of its own."""
    shape, device = model.layers[0].attention.shape, model.rotary.device
    shared = pass_alone(len(window), model.kernels, shape, model.kinds, model.rotary)
    caches = caches_alone(spec, len(window), shape.block_size, model.kv_dtype, device)
    return model.compute(torch.tensor(window, device=device), shared, caches)


def pass_alone(
    count: int,
    kernels: Kernels,
    shape: HeadShape,
    kinds: Collection[Kind],
    rotary: Rotary,
) -> Pass:
    """A pass over one text of `count` tokens, in blocks 0, 1, 2, ... of every layer."""
    device = rotary.device
    positions = torch.arange(count, device=device)
    inputs = AttentionInputs(
        query_starts=torch.tensor([0, count], device=device),
        context_lens=torch.tensor([count], device=device),
        tables=torch.arange(-(-count // shape.block_size), device=device)[None],
        slots=positions,
        num_prefill=1,
        longest_query=count,
        longest_context=count,
    )
    attention = {kind: planned(kernels, kind, inputs) for kind in kinds}
    slots = (positions,) * (1 + max((kind.table for kind in kinds), default=0))
    states = {0: kernels.plan_states(inputs)}
    return Pass(positions, rotary(positions), slots, attention, states=states)


def caches_alone(
    spec: ModelSpec,
    count: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    places_of: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """A cleared KV cache for `pass_alone`, by layer. `places_of`: as for `own_caches`."""
    places = [KVGroup(tuple(range(1 + max(places_of))))] if places_of else ()
    cache = make_cache(spec, -(-count // block_size), block_size, dtype, device, places)
    cache.view(torch.uint8).zero_()
    return own_caches(spec, cache, places_of)
