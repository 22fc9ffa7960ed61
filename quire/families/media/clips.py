"""Qwen2-Audio and Voxtral: sound in clips of 30 s, padded with silence, for encoders like
Whisper's.

Qwen2-Audio takes one clip and has a row for each 40 ms of its sound. Voxtral takes as many clips as
the sound needs, and has rows for all of them, also for the silence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import InvalidPrompt
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.log_mel import (
    MOST_BINS,
    MOST_FFT,
    MOST_RATE,
    MOST_SAMPLES,
    MOST_STEPS,
    log_mel,
)
from quire.families.media.rules import Placed, Samples


@dataclass(frozen=True, slots=True)
class ClippedSounds:
    """A clip is `frames` of `hop` samples, each with `bins` loudnesses. `rows`: the number of rows
    of a whole clip. None: there is one clip, and rows only for its sound."""

    pad: str
    rate: int
    bins: int
    fft: int
    hop: int
    frames: int
    rows: int | None
    two_way: bool = False

    @property
    def placeholder(self) -> str:
        return self.pad

    def place(self, samples: int, *, together: int) -> Placed:
        return Placed(self.pad, (self._count(samples),))

    def num_bytes(self, samples: int, *, together: int) -> int:
        # The spectrum, and the samples twice in float64 while they are padded and transformed.
        return self._clips(samples) * self.frames * (4 * self.bins + 16 * self.hop)

    def prepare(self, samples: Samples, *, together: int) -> dict[str, npt.NDArray[Any]]:
        """[clips, bins, frames]"""
        clips = self._clips(len(samples))
        filled = np.pad(samples, (0, clips * self.frames * self.hop - len(samples)))
        heard = log_mel(filled, bins=self.bins, fft=self.fft, hop=self.hop, rate=self.rate)
        cut = heard.reshape(self.bins, clips, self.frames).transpose(1, 0, 2)
        return {"mel": np.ascontiguousarray(cut), "frames": np.array(self._frames(len(samples)))}

    def _frames(self, samples: int) -> int:
        """The number of frames with sound."""
        return -(-samples // self.hop)

    def _clips(self, samples: int) -> int:
        return -(-self._frames(samples) // self.frames)

    def _count(self, samples: int) -> int:
        if self.rows is not None:
            return self.rows * self._clips(samples)
        frames, seconds = self._frames(samples), samples / self.rate
        if frames > self.frames:
            most = self.frames * self.hop / self.rate
            raise InvalidPrompt(
                f"the sound lasts {seconds:,.2f} s; this model hears at most {most:g} s: cut it "
                "into pieces",
                parameter="multi_modal_data",
            )
        count = ((frames - 1) // 2 + 1) // 2  # two steps of two frames each
        if count < 1:
            raise InvalidPrompt(
                f"the sound lasts {seconds:.3f} s, which is less than one token of it",
                parameter="multi_modal_data",
            )
        return count


def read(config: MediaConfig) -> ClippedSounds:
    said, tower = config.processor, config.model.inner("audio_config")
    frames = 2 * tower.count("max_source_positions", 1500, most=MOST_STEPS)
    return ClippedSounds(
        pad=config.token("audio_token_index", "audio_token_id", unsaid="<|AUDIO|>"),
        rate=said.count("sampling_rate", 16_000, most=MOST_RATE),
        bins=said.count("feature_size", tower.count("num_mel_bins", 128), most=MOST_BINS),
        fft=said.count("n_fft", 400, most=MOST_FFT),
        hop=said.count("hop_length", 160, most=MOST_SAMPLES // frames),
        frames=frames,
        rows=None,
    )


def read_voxtral(config: MediaConfig) -> ClippedSounds:
    tower, made = config.model.inner("audio_config"), read(config)
    width, inner = tower.count("hidden_size", 1280), tower.count("intermediate_size", 5120)
    pad = config.token("audio_token_id", unsaid="[AUDIO]")
    # A step is two frames. intermediate_size / hidden_size steps become one row.
    if not (rows := made.frames // 2 * width // inner):
        raise tower.wrong("intermediate_size", f"at most {made.frames // 2 * width:,}: one row")
    return replace(made, pad=pad, rows=rows)


QWEN2_AUDIO = MediaFamily(
    name="qwen2_audio",
    architectures=("Qwen2AudioForConditionalGeneration",),
    module="Qwen2AudioModel",
    read_sounds=read,
    sounds_in_text="Audio {n}: <|audio_bos|><|AUDIO|><|audio_eos|>",
)
VOXTRAL = MediaFamily(
    name="voxtral",
    architectures=("VoxtralForConditionalGeneration",),
    module="VoxtralModel",
    read_sounds=read_voxtral,
    sounds_in_text="[BEGIN_AUDIO][AUDIO]",
)
