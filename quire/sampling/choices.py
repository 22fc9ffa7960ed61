"""One of several choices, by their log-probabilities: the likeliest, or a random draw.

The noise is made as for tokens (seeds.py): choice i has the noise of token i at the position where
the answer begins, so a seed gives the same choice in any batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.sampling_params import SamplingParams

Doubles = npt.NDArray[np.float64]


def choose(logprobs: Doubles, params: SamplingParams, noise_key: int, position: int) -> list[int]:
    """The index of the choice of each of `params.n` samples; of equals the first.

    temperature, top_k, top_p and min_p apply to choices as they do to tokens.
    """
    if params.temperature == 0:
        return [int(logprobs.argmax())] * params.n
    scores = logprobs / params.temperature
    kept = _kept(scores, params)
    noisy = scores[kept] + _noise(kept, params.n, noise_key, position)
    return [int(kept[place]) for place in noisy.argmax(axis=1)]


def normalised(logprobs: Doubles) -> Doubles:
    """Probabilities that sum to 1."""
    weights = np.exp(logprobs - logprobs.max())
    probs: Doubles = weights / weights.sum()
    return probs


def _kept(scores: Doubles, params: SamplingParams) -> npt.NDArray[np.int64]:
    """Indices of the choices that may be drawn, in order; limited as tokens are (truncation.py)."""
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    count = len(order)
    if params.min_p > 0:
        count = int((falling >= falling[0] + np.log(params.min_p)).sum())
    if 0 < params.top_k < count:
        count = int((falling[:count] >= falling[params.top_k - 1]).sum())
    if params.top_p < 1:
        masses = normalised(falling[:count])
        count = max(1, int((np.cumsum(masses) - masses < params.top_p).sum()))
    return np.sort(order[:count])


def _noise(
    choices: npt.NDArray[np.int64], num_samples: int, noise_key: int, position: int
) -> Doubles:
    """Gumbel noise [samples, choices]."""
    import torch  # not needed for greedy choices

    from quire.sampling.seeds import NoiseKeys, noise

    def column(value: int) -> torch.Tensor:
        return torch.full((num_samples,), value, dtype=torch.int64)

    keys = NoiseKeys(
        low=column(noise_key & 0xFFFFFFFF),
        high=column(noise_key >> 32),
        sample=torch.arange(num_samples),
        position=column(position),
    )
    tokens = torch.from_numpy(choices)[None, :].expand(num_samples, -1).contiguous()
    found: Doubles = noise(tokens, keys).double().numpy()
    return found
