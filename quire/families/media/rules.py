"""How media become rows of an encoder, and their text in prompts.

The counts follow from width and height, or from the number of samples, so that prompts can be
planned before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.families.fields import Fields

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Placed:
    """The text of one item in a prompt.

    `text` has one pad token for each run of encoder rows, and `runs` has the length of each run:
    "<row><pad><end>", (4,) is one run of four rows. `grid` and `step`: see MediaItem."""

    text: str
    runs: tuple[int, ...]
    grid: tuple[int, int, int] | None = None
    step: float = 1.0

    @property
    def count(self) -> int:
        return sum(self.runs)


@dataclass(frozen=True, slots=True)
class Normalised:
    """How bytes become numbers: (byte * factor - mean) / std, for each channel."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, said: Fields, mean: float | tuple[float, ...], std: Any) -> Normalised:
        """Read from a processor's config; `mean` and `std` are defaults."""
        factor = 1.0
        if said.flag("do_rescale", True):
            said.refuse_null("rescale_factor")
            factor = said.positive("rescale_factor", 1 / 255)
        if not said.flag("do_normalize", True):
            return cls(factor, (0.0,) * 3, (1.0,) * 3)
        said.refuse_null("image_mean", "image_std")
        stds = _three(said, "image_std", std)
        if 0.0 in stds:
            raise said.wrong("image_std", "without 0")
        return cls(factor, _three(said, "image_mean", mean), stds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedImages:
    """What the rules of most models share: the placeholder of an image is the token of an encoder
    row, and Pillow's filter `resample` resizes images before they are normalised."""

    pad: str
    resample: int
    normalised: Normalised
    two_way: bool = False

    @property
    def placeholder(self) -> str:
        return self.pad


class MediaRules(Protocol):
    """One model's rules for one kind of media. Its repr contains everything that decides the result
    for an item. The size of an item is one or several numbers, depending on the kind."""

    @property
    def placeholder(self) -> str:
        """The text for one item in a caller's prompt."""

    @property
    def pad(self) -> str:
        """The token for a row of the encoder."""

    @property
    def two_way(self) -> bool:
        """Whether the tokens of an item see each other."""

    def place(self, *size: Any, **among: Any) -> Placed:
        """The text for an item of this size. `together`: number of items of its kind in the prompt,
        with it."""

    def prepare(self, *opened: Any, **among: Any) -> dict[str, npt.NDArray[Any]]:
        """The arrays that the tower reads."""

    def num_bytes(self, *size: Any, **among: Any) -> int:
        """About how many bytes that takes."""


class SoundRules(MediaRules, Protocol):
    """Rules for sounds. The size of a sound is its number of samples."""

    @property
    def rate(self) -> int:
        """Samples per second."""


class HeardRules(SoundRules, Protocol):
    @property
    def num_samples(self) -> int:
        """The most samples of a sound."""


@dataclass(frozen=True, slots=True)
class VideoShape:
    """The number of frames of a video, and their size. `rate`: frames per second, None if unknown.

    `sampled`: the frames were chosen already, and all are used; `at` then has the index of each in
    the whole video of `total` frames."""

    frames: int
    width: int
    height: int
    rate: float | None
    at: tuple[int, ...] | None = None
    total: int | None = None
    sampled: bool = True


class VideoFrames(Protocol):
    """A video whose frames can be read."""

    @property
    def shape(self) -> VideoShape:
        """Number and size of the frames."""

    def frames(self, wanted: Sequence[int]) -> Iterator[Image]:
        """The frames with these indices, in RGB, in order."""


class ImageRules(MediaRules, Protocol):
    @property
    def normalised(self) -> Normalised:
        """How bytes become the tower's numbers."""

    def place(self, width: int, height: int, *, together: int) -> Placed:
        """The text for an image of this size. `together`: number of images in the prompt, with
        it."""

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays that the tower reads, from an image in RGB."""

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        """About how many bytes that takes."""


def background_of(said: Fields, mean: float | tuple[float, ...] = CLIP_MEAN) -> tuple[int, ...]:
    """The colour of the background for an image, as bytes: the mean of the processor's config, or
    `mean`, also if the config does not normalise."""
    return tuple(int(one * 255) for one in _three(said, "image_mean", mean))


def _three(said: Fields, key: str, unsaid: Any) -> tuple[float, ...]:
    given = said.values.get(key)
    given = unsaid if given is None else given
    numbers = given if isinstance(given, list | tuple) else [given] * 3
    usual = (isinstance(one, int | float) and abs(one) < 1e6 for one in numbers)
    if len(numbers) != 3 or not all(usual):
        raise said.wrong(key, "a number, or one for each of three channels")
    return tuple(float(number) for number in numbers)
