"""The media of a list of prompts are looked at side by side, and read in their order."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from quire.errors import InvalidPrompt
from quire.inputs.media.ahead import MOST_AHEAD, LookAhead, Looked
from quire.inputs.parse import GivenMedia


def given(*items: Any) -> GivenMedia:
    return GivenMedia({"image": list(items)})


def test_prompts_are_looked_at_side_by_side_and_taken_in_order() -> None:
    prompts, both = [given(b"%d" % i) for i in range(2)], Barrier(2, timeout=20)

    def look(prompt: GivenMedia) -> Looked:
        both.wait()  # for the other, which is looked at only beside this one
        return Looked(prompt, {})

    ahead = LookAhead(prompts, look)
    assert [ahead.take(prompt) for prompt in prompts] == [Looked(p, {}) for p in prompts]
    ahead.close()


def test_nothing_is_looked_at_twice_nor_what_needs_no_decoder_nor_far_ahead() -> None:
    cat, dog = b"cat" * 100, Path("dog.png")
    prompts = [given(cat), given(object()), given(cat, cat), given(dog, cat), given(dog)]
    many = [given(b"%d" % i) for i in range(2 * MOST_AHEAD)]
    seen: list[GivenMedia] = []

    def look(prompt: GivenMedia) -> Looked:
        seen.append(prompt)
        return Looked(prompt, {})

    ahead = LookAhead([*prompts, *many], look)
    found = [ahead.take(prompt) is not None for prompt in prompts]
    assert found == [True, False, False, True, False]
    assert len(ahead._begun) == MOST_AHEAD
    ahead.close()
    assert prompts[2] not in seen


def test_what_is_wrong_with_a_prompt_is_raised_where_it_is_taken() -> None:
    prompts = [given(b"good"), given(b"bad"), given(b"fine")]

    def look(prompt: GivenMedia) -> Looked:
        if prompt is prompts[1]:
            raise InvalidPrompt("cut short")
        return Looked(prompt, {})

    ahead = LookAhead(prompts, look)
    assert ahead.take(prompts[0]) is not None
    with pytest.raises(InvalidPrompt, match="cut short"):
        ahead.take(prompts[1])
    assert ahead.take(prompts[2]) is not None
    ahead.close()
