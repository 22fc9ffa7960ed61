"""The trial: before a model serves, its results here are compared with those of Transformers.

Three sequences of a few tokens go through the model as the engine would run them: in chunks, side
by side, the last token alone. Their logits must match one plain call of the class. This shows what
a dry pass cannot: states kept elsewhere, positions counted inside, tokens mixed with neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quire.backends.ops import HeadShape
from quire.layers.batch import Batch
from quire.layers.kv_groups import STATE_WINDOW, KVGroup
from quire.models.fallback.body import plain_logits
from quire.models.fallback.interface import computing, configs_of, own_attention
from quire.models.fallback.model import TransformersModel
from quire.models.fallback.seen import Seen

# Largest allowed differences, as a share of the largest logit: in float32, and in 16 bits.
BOUND, ROUNDED_BOUND = 1e-3, 0.1
# How many tokens the long text is longer than a block, and the lengths of the short texts.
BEYOND, SHORT, SHORTER = 8, 14, 7
# The long text exceeds blocks and windows of up to this size.
SMALL = 64
# More tokens where layers keep states, so that a chunk that goes on from a state has several.
TAKEN_UP = 24


def trial(model: TransformersModel, shape: HeadShape, known: Sequence[Tensor] = ()) -> float:
    """The largest difference of logits, as a share of the largest logit. `known`: logits of one
    plain call of the whole class, where this model is one rank's share."""
    texts = trial_texts(model.seen, model.module, shape.block_size)
    device = next(model.module.parameters()).device
    cache, groups = _cache(model, shape, texts), _groups(model.seen)
    model.use_groups(groups)
    expected = [one.to(device) for one in known] or [plain(model.module, text) for text in texts]
    found = []
    for batch, places in _passes(texts, shape.block_size, len(groups), device):
        made = model.logits(model(batch, cache)[: batch.num_tokens])
        wanted = torch.cat([expected[i][first:last] for i, first, last in places])
        found.append((made.float() - wanted).abs().max())
    # torch's max returns a NaN if there is one; Python's max may pass over it.
    return float(torch.stack(found).max() / torch.cat(expected).abs().max())


def decode_rows(model: TransformersModel, shape: HeadShape) -> tuple[Batch, Tensor]:
    """The last pass of a trial (the last token of each text), with a cache of zeros."""
    texts = trial_texts(model.seen, model.module, shape.block_size)
    device = next(model.module.parameters()).device
    *_, (batch, _) = _passes(texts, shape.block_size, len(_groups(model.seen)), device)
    return batch, _cache(model, shape, texts)


def _cache(model: TransformersModel, shape: HeadShape, texts: list[list[int]]) -> Tensor:
    device = next(model.module.parameters()).device
    count = sum(-(-len(text) // shape.block_size) for text in texts)
    slots = (shape.num_kv_heads, shape.block_size, shape.head_dim)
    return torch.zeros(model.seen.num_layers, 2, count, *slots, dtype=shape.dtype, device=device)


def _groups(seen: Seen) -> tuple[KVGroup, ...]:
    """Groups of layers of the cache: those with keys and values, and those with states."""
    kept, last = len(seen.attending), seen.num_layers
    groups = KVGroup(tuple(range(kept))), KVGroup(tuple(range(kept, last)), STATE_WINDOW, True)
    return groups if seen.stateful else (KVGroup(tuple(range(last))),)


def bound_for(dtype: torch.dtype) -> float:
    return BOUND if dtype == torch.float32 else ROUNDED_BOUND


def trial_texts(seen: Seen, module: nn.Module, block_size: int) -> list[list[int]]:
    """A text longer than a block and than small windows, and two short ones. None has the padding
    token: some models count positions by it."""
    windows = {call.window for call in seen.calls}
    small = [size for size in (block_size, *windows) if size is not None and size <= SMALL]
    small += [TAKEN_UP] if seen.stateful else []
    pad = getattr(module.config, "pad_token_id", None)
    return [
        _text(length, seed, seen.vocab_size, pad)
        for seed, length in enumerate((sum(small) + BEYOND, SHORT, SHORTER))
    ]


def _text(length: int, seed: int, vocab_size: int, forbidden: Any) -> list[int]:
    made = torch.Generator().manual_seed(seed)
    allowed = [i for i in range(min(vocab_size, 4096)) if i != forbidden]
    picked = torch.randint(len(allowed), (length,), generator=made)
    return [allowed[i] for i in picked.tolist()]


def plain(module: nn.Module, text: list[int]) -> Tensor:
    """The logits of one plain call of the class."""
    ids = torch.tensor([text], device=next(module.parameters()).device)
    configs = configs_of(module)
    with computing(configs, attention=own_attention(configs)):
        return plain_logits(module, ids)[0].float()


Places = list[tuple[int, int, int]]  # (text, first token, last token)


def _passes(
    texts: list[list[int]], block_size: int, num_groups: int, device: torch.device
) -> list[tuple[Batch, Places]]:
    """Four passes: a chunk of the long text; most of its rest beside the first tokens of the short
    texts; some more tokens of each; and the last token of each as decode rows."""
    long, short, shorter = map(len, texts)
    cut = long // 2 + 1
    # One goes on behind a single token: a window of a few would hide what fills it up before more.
    first, second = [(0, 0, cut)], [(0, cut, long - 4), (1, 0, short - 5), (2, 0, 1)]
    third = [(0, long - 4, long - 1), (1, short - 5, short - 1), (2, 1, shorter - 1)]
    last = [(i, len(text) - 1, len(text)) for i, text in enumerate(texts)]
    return [
        (_batch(texts, places, block_size, num_groups, device, decoding=places is last), places)
        for places in (first, second, third, last)
    ]


def _batch(
    texts: list[list[int]],
    places: Places,
    size: int,
    num_groups: int,
    device: torch.device,
    *,
    decoding: bool,
) -> Batch:
    counts = [-(-len(text) // size) for text in texts]
    first_blocks, width = [sum(counts[:i]) for i in range(len(counts))], max(counts)
    tables = [[first_blocks[i] + j for j in range(width)] for i, _, _ in places]
    lengths = [last - first for _, first, last in places]
    positions = [p for _, first, last in places for p in range(first, last)]
    slots = [first_blocks[i] * size + p for i, first, last in places for p in range(first, last)]

    def put(numbers: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    return Batch(
        token_ids=put([texts[i][p] for i, first, last in places for p in range(first, last)]),
        positions=put(positions),
        slots=put(slots).expand(num_groups, -1),
        query_starts=put([sum(lengths[:i]) for i in range(len(lengths) + 1)]),
        context_lens=put([last for _, _, last in places]),
        # The dtypes that tables have on these devices.
        tables=put(tables)
        .to(torch.int32 if device.type == "cuda" else torch.int64)
        .expand(num_groups, -1, -1),
        num_prefill=0 if decoding else len(places),
        prefixes=(),
        logit_tokens=put([]),
        draws=put([]),
        fresh_blocks=put([]),
        longest_query=max(lengths),
        longest_context=max(last for _, _, last in places),
    )
