"""How far 8-bit arithmetic (or fp8) strays from float32 on the same weights, and how far it may.

Both models read the same real text, teacher-forced: each predicts every next token from the
true ones before it. What counts is how well they predict (perplexity), how far their
distributions are apart (Kullback-Leibler), and how often they would choose the same token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.executor.memory import make_cache
from quire.kernels.cpu.native_int8 import NativeLinear
from quire.kernels.native.kernels import cache_dtype_beside_int8
from quire.kernels.ops import AttentionInputs
from quire.layers.attention import Pass
from quire.models.decoder import Decoder
from quire.spec import ModelSpec

MAX_PERPLEXITY = 0.01  # relative
MAX_DIVERGENCE = 0.01  # nats per token, in the mean
MIN_AGREEMENT = 0.95
MIN_CLEAR_AGREEMENT = 0.99
CLEAR = 0.5  # nats between the two likeliest tokens of float32


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What was found on `num_tokens` predictions."""

    num_tokens: int
    perplexity: float  # change of it: 0.003 is 0.3 % more
    divergence: float
    agreement: float
    clear_agreement: float  # where the two likeliest tokens are CLEAR apart

    @property
    def passes(self) -> bool:
        return (
            self.perplexity <= MAX_PERPLEXITY
            and self.divergence <= MAX_DIVERGENCE
            and self.agreement >= MIN_AGREEMENT
            and self.clear_agreement >= MIN_CLEAR_AGREEMENT
        )

    @property
    def text(self) -> str:
        return (
            f"perplexity {self.perplexity:+.1%}, {self.agreement:.1%} of choices the same, "
            f"KL {self.divergence:.4f} on {self.num_tokens:,} tokens"
        )


@torch.inference_mode()
def compare(
    exact: Decoder, rounded: Decoder, spec: ModelSpec, windows: Sequence[Sequence[int]]
) -> Accuracy:
    """Read each window of token ids with both models, from its beginning."""
    num_tokens = num_clear = same = clear_same = 0
    surprise = divergence = 0.0
    for truth, ours, theirs in _predictions(exact, rounded, spec, windows):
        num_tokens += truth.shape[0]
        there = truth[:, None]
        surprise += float((ours.gather(1, there) - theirs.gather(1, there)).sum())
        divergence += float((ours.exp() * (ours - theirs)).sum())
        top = ours.topk(2)
        agrees = top.indices[:, 0] == theirs.argmax(-1)
        clear = top.values[:, 0] - top.values[:, 1] > CLEAR
        same, clear_same = same + int(agrees.sum()), clear_same + int((agrees & clear).sum())
        num_clear += int(clear.sum())
    return Accuracy(
        num_tokens=num_tokens,
        perplexity=math.expm1(surprise / num_tokens),
        divergence=divergence / num_tokens,
        agreement=same / num_tokens,
        clear_agreement=clear_same / max(1, num_clear),
    )


def _predictions(
    exact: Decoder, rounded: Decoder, spec: ModelSpec, windows: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Next tokens and both models' log-probabilities, a few positions at a time."""
    step = max(1, (1 << 24) // spec.vocab_size)
    for window in windows:
        truth = torch.tensor(window[1:], device=exact.rotary.cos.device)
        hidden = [_hidden(model, spec, window)[:-1] for model in (exact, rounded)]
        for at in range(0, truth.shape[0], step):
            ours, theirs = (
                model.logits(h[at : at + step]).float().log_softmax(-1)
                for model, h in zip((exact, rounded), hidden, strict=True)
            )
            yield truth[at : at + step], ours, theirs


def _hidden(model: Decoder, spec: ModelSpec, window: Sequence[int]) -> Tensor:
    """The last hidden states of a text on its own, in a cache of its own."""
    shape, device = model.layers[0].attention.shape, model.rotary.cos.device
    count, size = len(window), shape.block_size
    num_blocks = -(-count // size)
    positions = torch.arange(count, device=device)
    inputs = AttentionInputs(
        query_starts=torch.tensor([0, count], device=device),
        context_lens=torch.tensor([count], device=device),
        tables=torch.arange(num_blocks, device=device)[None],
        slots=positions,
        num_prefill=1,
        longest_query=count,
        longest_context=count,
    )
    is_int8 = isinstance(model.head.multiply, NativeLinear)
    dtype = cache_dtype_beside_int8(model.kernels, shape) if is_int8 else shape.kv_dtype
    cache = make_cache(spec, num_blocks, size, dtype, device)
    cache.view(torch.uint8).zero_()
    attention = {w: model.kernels.plan_attention(inputs, w) for w in model.windows}
    shared = Pass(*model.rotary(positions), positions, attention)
    return model.compute(torch.tensor(window, device=device), shared, cache)
