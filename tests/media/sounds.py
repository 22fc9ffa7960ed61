"""Sounds for tests: tones with noise over them, which no two lengths or seeds share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def tone(length: int, seed: int = 0, rate: int = 16_000) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng([seed, length])
    at = np.arange(length) / rate
    waves = sum(np.sin(2 * np.pi * hertz * at) for hertz in rng.uniform(80, 3000, 3))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(0.5, 4) * at)
    made: npt.NDArray[np.float32] = (0.2 * waves * swell + rng.normal(0, 0.02, length)).astype("f4")
    return made
