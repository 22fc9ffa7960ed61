"""Images without end: what is read ahead of the engine, and the memory it takes, stay bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import SamplingParams
from quire.inputs.media.held import MOST_HELD, held_bytes, windows
from tests.media.test_llava import make
from tests.media.tiny import picture

SHAPE = (512, 512, 3)
ONE = SamplingParams(temperature=0, max_tokens=1)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def images(count: int, made: list[int]) -> Iterator[dict[str, Any]]:
    """No two alike; `made` is told how many there were."""
    base = np.random.default_rng(0).integers(0, 255, SHAPE, dtype=np.uint8)
    for number in range(count):
        pixels = base.copy()
        pixels[0, 0] = number % 256, number // 256, 7
        made[0] += 1
        yield {"prompt": "<image> what?", "multi_modal_data": {"image": pixels}}


def streamed(llm: Any, count: int) -> tuple[int, list[int]]:
    """The most that were read and had no answer, and bytes that were held at each answer, above
    those at first."""
    made, ahead, held = [0], 0, list[int]()
    list(llm.stream(images(8, [0]), ONE))  # what the first images load
    first = resident()
    for number, (_, output) in enumerate(llm.stream(images(count, made), ONE), start=1):
        assert output.error is None
        ahead = max(ahead, made[0] - number)
        held.append(resident() - first)
    assert len(held) == count
    return ahead, held


def test_a_stream_of_images_is_read_as_it_is_computed(tmp_path: Path) -> None:
    with make(tmp_path).llm(max_num_seqs=8) as llm:
        ahead, held = streamed(llm, 300)
    assert ahead < 100  # a window of 32 and what waits before it
    later = [np.median(held[begin : begin + 50]) for begin in (100, 250)]
    assert later[1] - later[0] < 20 * np.prod(SHAPE)


@pytest.mark.long
def test_ten_thousand_images_take_two_gigabytes_at_most(tmp_path: Path) -> None:
    with make(tmp_path).llm() as llm:
        _, held = streamed(llm, 10_000)
    assert max(held) < 2 << 30


def test_windows_hold_few_large_media() -> None:
    large = np.zeros(MOST_HELD // 4, np.uint8)
    prompts: list[Any] = [{"multi_modal_data": {"image": [large, b"1234"]}}] * 6
    assert [len(some) for some in windows(prompts, 100)] == [4, 2]
    assert [len(some) for some in windows(["text"] * 5, 2)] == [2, 2, 1]
    sound = {"prompt": "", "multi_modal_data": {"audio": ([0.1] * 10, 16_000)}}
    assert held_bytes({"encoder_prompt": sound, "decoder_prompt": "x"}) == 80
    assert held_bytes({"multi_modal_data": {"image": picture(10, 20)}}) == 800
    assert held_bytes({"prompt_token_ids": [1, 2]}) == held_bytes([1, 2]) == 0


def test_what_stands_in_chats_counts_as_what_stands_beside_prompts() -> None:
    def held(*parts: Any) -> int:
        return held_bytes([{"role": "system", "content": "x" * 999}, {"content": list(parts)}])

    url = "data:image/png;base64," + "A" * 1000
    assert 1000 < held({"type": "image_url", "image_url": {"url": url}}) < 1100
    assert 1000 < held({"input_audio": {"data": "A" * 1000, "format": "wav"}}) < 1100
    assert held({"type": "text", "text": "x" * 1000}) == 0
    # Nobody knows yet how large it is: a window has some tens of them, not hundreds.
    fetched = held({"type": "image_url", "image_url": "https://a.example/x.png"})
    assert 16 <= MOST_HELD // fetched <= 64
