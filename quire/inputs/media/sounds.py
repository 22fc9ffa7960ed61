"""Sounds as callers pass them: checked, hashed, and made samples at the model's rate when needed.

A sound is encoded bytes, a file, or samples with their rate. Samples are floats from -1 to 1, or
whole numbers of 8, 16 or 32 bits. Samples without a rate are taken to be at the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quire.errors import InvalidPrompt
from quire.inputs.media.allowed import MediaOptions
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.files import allowed_file, of_dataset, read_file
from quire.inputs.media.identity import content_hash
from quire.inputs.media.pieces import SoundPiece
from quire.inputs.media.samples import (
    MOST_BYTES,
    MOST_CHANNELS,
    MOST_SECONDS,
    About,
    Samples,
    bad,
    blocks,
    checked_rate,
    checked_samples,
    decoder_of,
    resampled,
)

# For each type of whole numbers: the divisor, and what is subtracted first.
_WHOLE = {"uint8": (128.0, 128), "int16": (32_768.0, 0), "int32": (2_147_483_648.0, 0)}
_FORMS = (
    "pass samples (a 1-D array or list of floats), (samples, rate), the bytes of a file, or a "
    "pathlib.Path"
)


class SoundSource(Protocol):
    """One sound: a hash, its length at the model's rate, and its samples on request."""

    @property
    def content(self) -> bytes:
        """A hash of everything that determines its samples."""

    @property
    def num_samples(self) -> int:
        """The number of samples at the model's rate."""

    @property
    def size(self) -> tuple[int]:
        """The same number, as the size from which rules place the sound."""

    def open(self) -> Samples:
        """Return the samples, mono, at the model's rate."""


@dataclass(frozen=True, slots=True)
class EncodedSound:
    """A sound in bytes, or in a file, which is read again when the sound is opened."""

    data: bytes | Path
    content: bytes
    about: About
    rate: int  # the model's
    children: MediaChildren

    @classmethod
    def of(cls, data: bytes | Path, rate: int, children: MediaChildren) -> EncodedSound:
        raw = data if isinstance(data, bytes) else read_file(data, MOST_BYTES)
        if len(raw) > MOST_BYTES:
            raise bad(f"has {len(raw):,} bytes; at most {MOST_BYTES:,} are read")
        content = content_hash(b"encoded sound", raw)
        asked = {"most_seconds": MOST_SECONDS}
        found = About(**children.header(decoder_of(raw), raw, content, **asked))
        return cls(data, content, found, rate, children)

    @property
    def num_samples(self) -> int:
        return self.about.num_samples(self.rate)

    @property
    def size(self) -> tuple[int]:
        return (self.num_samples,)

    def open(self) -> Samples:
        raw = self.data if isinstance(self.data, bytes) else read_file(self.data, MOST_BYTES)
        if not isinstance(self.data, bytes) and content_hash(b"encoded sound", raw) != self.content:
            raise bad(f"{self.data.name} changed while the prompts were computed")
        return _of_length(list(blocks(raw, self.rate, self.children)), self.num_samples)


@dataclass(frozen=True, slots=True, eq=False)
class ArraySound:
    samples: Samples
    content: bytes
    about: About
    rate: int  # the model's

    @classmethod
    def of(cls, given: Any, rate: int, wanted: int) -> ArraySound:
        samples = checked_samples(_mono(_as_array(given), rate))
        content = content_hash(f"samples {rate}".encode(), samples.tobytes())
        return cls(samples, content, About("samples", rate, 1, len(samples)), wanted)

    @property
    def num_samples(self) -> int:
        return self.about.num_samples(self.rate)

    @property
    def size(self) -> tuple[int]:
        return (self.num_samples,)

    def open(self) -> Samples:
        made = list(resampled([self.samples], self.about.rate, self.rate))
        return _of_length(made, self.num_samples)


def listed_sounds(value: Any) -> list[Any]:
    """The sounds in `value`. (samples, rate) is one sound, and so is a list that begins with a
    number. The rows of an array of two dimensions are several sounds."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim == 2 else [value]
    if not isinstance(value, list | tuple) or _is_pair(value):
        return [value]
    return [value] if len(value) and isinstance(value[0], Number) else list(value)


def read_sound(
    given: Any, options: MediaOptions, rate: int, children: MediaChildren
) -> SoundSource:
    """Read a sound for a model that takes `rate` samples per second."""
    if isinstance(given, SoundPiece):
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return EncodedSound.of(bytes(given), rate, children)
    if isinstance(given, Path):
        return EncodedSound.of(allowed_file(str(given), options.folder), rate, children)
    if isinstance(given, Mapping):  # an item of a dataset, decoded or not
        if given.get("array") is not None:
            return ArraySound.of(given["array"], checked_rate(given.get("sampling_rate")), rate)
        return read_sound(of_dataset(given, "audio"), options, rate, children)
    if isinstance(given, str):
        raise bad(f"is text; {_FORMS}, or a URL as an audio_url part of a chat")
    if isinstance(given, list | tuple) and _is_pair(given):
        # torchaudio returns (tensor of channels, rate). Such a tensor cannot be embeddings.
        return ArraySound.of(_as_array(given[0], channels=True), checked_rate(given[1]), rate)
    return ArraySound.of(given, rate, rate)


def _is_pair(value: list[Any] | tuple[Any, ...]) -> bool:
    """(samples, rate)"""
    return len(value) == 2 and isinstance(value[1], Number) and not isinstance(value[0], Number)


def _as_array(given: Any, *, channels: bool = False) -> np.ndarray[Any, np.dtype[Any]]:
    kind = type(given)
    if f"{kind.__module__}.{kind.__name__}" == "torch.Tensor":
        if given.ndim != 1 and not channels:
            raise bad(
                "is a tensor of torch with more than one dimension, which scripts for vLLM pass "
                "for embeddings; pass samples in one dimension, or numpy arrays"
            )
        given = given.detach().cpu()
        # numpy has no bfloat16.
        return np.asarray((given.float() if given.is_floating_point() else given).numpy())
    if isinstance(given, np.ndarray):
        return given
    if not isinstance(given, list | tuple):
        raise bad(f"is a {kind.__name__}; {_FORMS}")
    try:
        return np.asarray(given)
    except ValueError:
        raise bad(f"is a list whose parts differ in length; {_FORMS}") from None


def _mono(given: np.ndarray[Any, np.dtype[Any]], rate: int) -> Samples:
    """A copy in float32, with the channels averaged. `rate` is that of the samples."""
    if given.ndim == 2:  # the longer side is time
        given = given if given.shape[0] >= given.shape[1] else given.T
    elif given.ndim != 1:
        raise bad(f"is an array of shape {given.shape}; it should be [samples]")
    if given.size == 0:
        raise bad("holds no samples")
    channels = given.shape[1] if given.ndim == 2 else 1
    if channels > MOST_CHANNELS:
        raise bad(f"has {channels} channels; at most {MOST_CHANNELS} are read")
    if len(given) > MOST_SECONDS * rate:
        raise bad(f"lasts {len(given) / rate:,.0f} s; at most {MOST_SECONDS} s are read")
    if given.dtype.kind == "f":
        with np.errstate(over="ignore"):  # `checked_samples` refuses infinity
            floats = given.astype(np.float32)
    elif str(given.dtype) in _WHOLE:
        divisor, middle = _WHOLE[str(given.dtype)]
        floats = ((given.astype(np.float64) - middle) / divisor).astype(np.float32)
    else:
        whole = ", ".join(_WHOLE)
        raise bad(f"is an array of {given.dtype}; samples are floats from -1 to 1, or {whole}")
    return floats if floats.ndim == 1 else floats.mean(1)


def _of_length(made: list[Samples], length: int) -> Samples:
    """The blocks joined and cut or padded to the planned length; resampling may be off by some."""
    samples = np.concatenate(made)
    if abs(len(samples) - length) > 8:
        raise InvalidPrompt(
            f"the sound became {len(samples):,} samples and not {length:,}. This is a bug.",
            parameter="multi_modal_data",
        )
    return np.pad(samples[:length], (0, max(length - len(samples), 0)))
