"""Whisper: a sound of up to 30 s, padded with silence. The decoder attends to it, and the prompt
has no text for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import CorruptModel, InvalidPrompt
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.log_mel import MOST_BINS, MOST_FFT, MOST_RATE, MOST_SAMPLES, log_mel
from quire.families.media.rules import Placed, Samples


@dataclass(frozen=True, slots=True)
class HeardSounds:
    """`num_samples` at `rate` are encoded at once, as `bins` bands, and become `count` rows."""

    bins: int
    rate: int
    fft: int
    hop: int
    num_samples: int
    count: int
    pad: str = ""
    placeholder: str = ""
    two_way: bool = False

    def place(self, num_samples: int, *, together: int) -> Placed:
        if together > 1:
            raise InvalidPrompt(
                f"the prompt has {together} sounds; the model hears one at a time",
                parameter="multi_modal_data",
                value=together,
            )
        if num_samples > self.num_samples:
            raise InvalidPrompt(
                f"the sound lasts {num_samples / self.rate:,.1f} s; the model hears "
                f"{self.num_samples / self.rate:g} s at once. Cut it into pieces, as `quire "
                "transcribe` does",
                parameter="multi_modal_data",
                value=num_samples,
            )
        return Placed("", (self.count,))

    def num_bytes(self, num_samples: int, *, together: int) -> int:
        return 4 * self.bins * 2 * self.count

    def prepare(self, samples: Samples, *, together: int) -> dict[str, npt.NDArray[Any]]:
        whole = np.zeros(self.num_samples, np.float32)
        whole[: len(samples)] = samples
        made = log_mel(whole, bins=self.bins, fft=self.fft, hop=self.hop, rate=self.rate)
        return {"mel": made}


def read(config: MediaConfig) -> HeardSounds:
    said, model = config.processor, config.model
    rate, hop = said.count("sampling_rate", 16_000, most=MOST_RATE), said.count("hop_length", 160)
    num_samples = said.count("chunk_length", 30, most=MOST_SAMPLES // rate) * rate
    count, bins = (
        model.count("max_source_positions", 1500),
        model.count("num_mel_bins", 80, most=MOST_BINS),
    )
    if num_samples // hop != 2 * count:
        raise CorruptModel(
            f"{said.source}: {num_samples:,} samples make {num_samples // hop:,} steps, and the "
            f"encoder takes {2 * count:,} (2 x max_source_positions)"
        )
    if said.count("feature_size", bins) != bins:
        raise CorruptModel(f"{said.source}: feature_size is not {bins}, the model's num_mel_bins")
    return HeardSounds(bins, rate, said.count("n_fft", 400, most=MOST_FFT), hop, num_samples, count)


FAMILY = MediaFamily(
    name="whisper",
    architectures=("WhisperForConditionalGeneration",),
    module="WhisperModel",
    read_sounds=read,
    crossed=True,
)
