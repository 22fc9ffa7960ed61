"""Log-mel spectra as Whisper takes them: the loudness of each band of frequencies every 10 ms, as a
logarithm. Only numpy, in float64: in float32 nearly silent parts would be noise."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LEAST_POWER = 1e-10
LOUDEST_OVER_SILENCE = 8.0  # powers of ten; quieter parts are raised to it
# Of what processors' files may say: a clip of 2^24 samples takes 128 MiB while it is transformed.
MOST_RATE, MOST_BINS, MOST_FFT, MOST_SAMPLES, MOST_STEPS = 384_000, 1024, 1 << 14, 1 << 24, 1 << 20
_FRAMES = 3000  # frames transformed at a time
# Slaney's mel scale: linear up to 1,000 Hz, logarithmic above.
_EVEN_STEP, _EVEN_UP_TO, _LOG_STEP = 200 / 3, 1000.0, np.log(6.4) / 27.0


def log_mel(
    samples: Floats, *, bins: int, fft: int = 400, hop: int = 160, rate: int = 16_000
) -> Floats:
    """[bins, len(samples) // hop]. There must be more samples than half a window (`fft`). For a
    fixed length callers append zeros first."""
    around = np.pad(samples.astype(np.float64), fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, fft)[::hop]
    count = len(samples) // hop
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
    filters = mel_filters(bins, fft, rate)
    made = np.empty((bins, count), np.float64)
    for first in range(0, count, _FRAMES):
        last = min(first + _FRAMES, count)
        turned: npt.NDArray[Any] = np.fft.rfft(frames[first:last] * window)
        made[:, first:last] = filters @ (turned.real**2 + turned.imag**2).T
    made = np.log10(np.maximum(made, LEAST_POWER))
    made = np.maximum(made, made.max() - LOUDEST_OVER_SILENCE)
    loudness: Floats = ((made + 4.0) / 4.0).astype(np.float32)
    return loudness


@lru_cache(maxsize=8)
def mel_filters(bins: int, fft: int, rate: int) -> Doubles:
    """[bins, fft // 2 + 1]: triangles of equal area over the frequencies of a transform, evenly
    spaced on the mel scale from 0 to half the rate."""
    edges = _hertz(np.linspace(0.0, _mel(rate / 2), bins + 2))
    frequencies = np.linspace(0.0, rate / 2, fft // 2 + 1)
    widths = np.diff(edges)
    slopes = edges[:, None] - frequencies
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    heights = 2.0 / (edges[2:] - edges[:-2])
    filters: Doubles = np.maximum(0.0, np.minimum(rising, falling)) * heights[:, None]
    filters.setflags(write=False)
    return filters


def _mel(hertz: float) -> float:
    if hertz < _EVEN_UP_TO:
        return hertz / _EVEN_STEP
    return float(_EVEN_UP_TO / _EVEN_STEP + np.log(hertz / _EVEN_UP_TO) / _LOG_STEP)


def _hertz(mels: Doubles) -> Doubles:
    first = _EVEN_UP_TO / _EVEN_STEP
    above: Doubles = _EVEN_UP_TO * np.exp(_LOG_STEP * (np.maximum(mels, first) - first))
    return np.where(mels < first, mels * _EVEN_STEP, above)
