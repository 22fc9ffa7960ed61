"""What the kernel of logprobs must do, compared with quire.sampling.logprobs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.sampling.logprobs import log_probabilities, token_logprobs
from tests.backends.triton.checks import Place

UNTOUCHED = -7


def entries(
    place: Place, logits: Tensor, tokens: Tensor, wanted: list[int], *, as_logits: bool
) -> Tensor:
    """[lines, 42] of step 1 of 2; line i is of row lines - i, and the last line of nobody."""
    from quire.backends.triton.sample import SampleBuffers
    from quire.backends.triton.score import score

    lines, vocab = logits.shape
    rows = torch.arange(lines, 0, -1, dtype=torch.int32, device=place.device)
    rows[-1] = -1
    column = torch.tensor([-1, *wanted[::-1]], dtype=torch.int32, device=place.device)
    shape = (2, lines, 42)
    out = torch.full(shape, UNTOUCHED, dtype=torch.int32, device=place.device)
    step = torch.ones(1, dtype=torch.int32, device=place.device)
    failed = torch.zeros(lines, dtype=torch.bool, device=place.device)
    failed[0] = True
    room = SampleBuffers(lines, vocab, place.device)
    args = (logits, rows, tokens.to(place.device), failed, column, out, step, room)
    score(*args, as_logits=as_logits)
    assert bool((out[0] == UNTOUCHED).all())
    return out[1].cpu()


def check_scores(place: Place, logits: Tensor, seed: int, *, as_logits: bool = False) -> None:
    """Lines 0 (failed), 1 (did not ask) and the last (nobody) get nothing, all others theirs."""
    rng = np.random.default_rng(seed)
    lines, vocab = logits.shape
    tokens = torch.from_numpy(rng.integers(0, vocab, lines))
    tokens[2:4] = logits[2:4].float().argmax(1).cpu()
    most = min(20, vocab)
    wanted = [5, -1, *rng.integers(0, most + 1, lines - 4).tolist(), most, 3]
    found = entries(place, logits, tokens, wanted, as_logits=as_logits)
    wide = logits.float().cpu()
    for line, (entry, count) in enumerate(zip(found, wanted, strict=True)):
        if line in (0, 1, lines - 1):
            assert bool((entry == UNTOUCHED).all())
            continue
        values = wide[line : line + 1]
        values = values if as_logits else log_probabilities(values)
        told = token_logprobs(values, tokens[line : line + 1], count)
        # By the logits themselves: among very many, some logprobs round to the same number.
        assert entry[1] == 1 + int((wide[line] > wide[line, tokens[line]]).sum())
        pairs = entry[2 : 2 + 2 * count].view(count, 2)
        assert pairs[:, 0].tolist() == told.top_ids[0].tolist()
        floats = torch.cat([entry[:1], pairs[:, 1]]).view(torch.float32).numpy()
        expected = np.concatenate([told.logprobs, told.top_logprobs[0]])
        # Sums over 150,000 tokens in float32, in two orders.
        within = 1e-5 if vocab < 50_000 else 3e-5
        np.testing.assert_allclose(floats, expected, atol=within, rtol=1e-6)
        assert bool((entry[2 + 2 * count :] == UNTOUCHED).all())
