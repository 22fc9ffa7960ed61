"""Videos of GLM-4.1V and its successors: each group of frames is an image in the prompt, with its
time behind it. There are two kinds of processors, which choose frames of a file and write times in
different ways; the names of classes in their configs tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from quire.families.fields import Fields
from quire.families.media.family import MediaConfig
from quire.families.media.qwen_vl import (
    GIVEN_RATE,
    MOST_RATE,
    ShapedImages,
    ShapedVideos,
    grouped_of,
    shape_of,
)
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, VideoShape

BOUNDS = 112 * 112, 28 * 28 * 2 * 30_000  # pixels of all frames together
OPTIONS = "fps", "max_duration"  # of the older kind
NOT_READ = "min_pixels", "max_pixels"  # other names of bounds, which these processors have not
LONGEST = 300  # seconds of a file that the older kind samples at its rate
# The newer kind: groups per second of files up to so many seconds, the most frames, and how much
# of a file counts.
_RATES, _SLOWEST = ((30, 3.0), (300, 1.0)), 0.5
_MOST, _COUNTED = 640, 2400
_OLD, _NEW = "Glm4v", "Glm46V"
_NAMES = "processor_class", "video_processor_type", "image_processor_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedVideos(ShapedVideos):
    """`whole_seconds`: times are written as whole numbers. `longest`: see LONGEST; None: frames are
    sampled as the newer kind does."""

    video: str
    whole_seconds: bool
    longest: int | None

    @property
    def placeholder(self) -> str:
        return self.video

    def sampled(self, total: int, rate: float) -> list[int]:
        """Frames that are used twice are there once; the last one again makes their number even."""
        if self.longest is None:
            found = _by_groups(total, rate, self.times)
        else:
            found = _by_rate(total, rate, self.rate, self.longest)
        unique = list(dict.fromkeys(found))
        return unique + unique[-1:] * (len(unique) % 2)

    def size_of(self, shape: VideoShape, count: int) -> tuple[int, int]:
        # A single frame is repeated.
        return self.images.grouped(shape.width, shape.height, max(count, self.times), self.times)

    def times_of(self, seconds: list[float]) -> list[float]:
        """That of every second frame, however many frames are a group."""
        groups = -(-len(seconds) // self.times)
        found = seconds[::2][:groups]
        return found + found[-1:] * (groups - len(found))

    def group_text(self, second: float) -> str:
        said = f"{int(second)}" if self.whole_seconds else f"{second:.1f} seconds"
        return f"<|begin_of_image|>{self.pad}<|end_of_image|>{said}"


def _by_rate(total: int, rate: float, wanted: float, longest: int) -> list[int]:
    """So many frames per second, of a longer file as many as of the longest."""
    seconds = total / rate
    if seconds <= longest:
        count = max(int(seconds * wanted), 1)
        if count > 2 * total:  # every one, several times
            return list(range(min(total, ceil((count - 1) * rate / wanted) + 1)))
        return [min(total - 1, ceil(one * rate / wanted)) for one in range(count)]
    if (most := max(int(longest * wanted), 1)) >= total:
        return list(range(total))
    return [min(total - 1, ceil(at * rate)) for at in np.linspace(0, seconds, most).tolist()]


def _by_groups(total: int, rate: float, times: int) -> list[int]:
    """The first frame of each part of a second, then as many as are wanted, evenly."""
    seconds = total / rate
    counted = min(seconds, _COUNTED)
    groups = next((pace for most, pace in _RATES if counted <= most), _SLOWEST)
    wanted = max(1, min(int(counted * groups * times), _MOST))
    if total < wanted:
        return _evenly(0, total - 1, wanted)
    found, after, apart = [], 0.0, 1 / rate
    for one in range(total):
        if one * apart >= after:
            after += 1 / (times * groups)
            found.append(one)
            if after >= int(seconds):
                break
    if len(found) < wanted:
        return _evenly(found[0], found[-1], wanted)
    return _evenly(0, total - 1, wanted) if len(found) > wanted else found


def _evenly(first: int, last: int, count: int) -> list[int]:
    return [int(one) for one in np.linspace(first, last, count, dtype=int)]


def reader(unsaid: str) -> Any:
    """The function that reads the rules; `unsaid`: the kind where configs name no class."""

    def read(config: MediaConfig) -> TimedVideos:
        vision, said = config.model.inner("vision_config"), known(config.videos)
        pad = config.token("image_token_id", unsaid="<|image|>")
        older = _kind(said, ("video_processor_type",), unsaid) == _OLD
        for key in OPTIONS:
            if not older and config.asked.values.get(key) is not None:
                raise config.asked.wrong(key, "left out: this processor has rates of its own")
        shape = shape_of(config, said, pad, BOUNDS, (CLIP_MEAN, CLIP_STD))
        return TimedVideos(
            images=ShapedImages(**shape),
            times=grouped_of(said, vision),
            rate=said.positive("fps", GIVEN_RATE, most=MOST_RATE),
            fewest=1,
            most=_MOST,
            ticks=None,
            stamped=True,
            video=config.token("video_token_id", unsaid="<|video|>"),
            whole_seconds=_kind(said, _NAMES, _kind(config.processor, _NAMES, unsaid)) == _OLD,
            longest=said.count("max_duration", LONGEST) if older else None,
        )

    return read


def known(said: Fields) -> Fields:
    """What the processors of these models read of their configs."""
    some = {key: value for key, value in said.values.items() if key not in NOT_READ}
    return Fields(some, said.source, false_nulls=said.false_nulls)


def _kind(said: Fields, keys: tuple[str, ...], unsaid: str) -> str:
    """The kind that the first of these keys with a value names."""
    key = next((one for one in keys if said.values.get(one) is not None), None)
    if key is None:
        return unsaid
    name = str(said.values[key])
    if not name.startswith((_OLD, _NEW)):
        raise said.wrong(key, f"a class of {_OLD} or of {_NEW}")
    return _OLD if name.startswith(_OLD) else _NEW
