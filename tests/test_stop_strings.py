from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidParams
from quire.results.stop_strings import StopMatch, StopStrings


def plainly(stops: list[str], text: str, include: bool, start: int = 0) -> StopMatch | None:
    """The rule said once more: walk the ends; at each, the first stop of the list that ends there
    (and not within the first `start` characters)."""
    for end in range(start + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return StopMatch(stop, end if include else end - len(stop), end)
    return None


def test_the_stop_that_completes_first_wins() -> None:
    search = StopStrings(["ND.", "END"])
    assert search.feed("the E") is None
    assert search.feed("ND.") == StopMatch("END", 4, 7)


def test_ties_go_by_the_order_of_the_list() -> None:
    assert StopStrings(["b", "ab"]).feed("xab") == StopMatch("b", 2, 3)
    assert StopStrings(["ab", "b"]).feed("xab") == StopMatch("ab", 1, 3)


def test_the_stop_stays_in_the_text_where_asked_for() -> None:
    assert StopStrings(["ab"], include=True).feed("xaby") == StopMatch("ab", 3, 3)


def test_a_stop_may_begin_but_not_complete_in_skipped_text() -> None:
    search = StopStrings(["ab", "cd"])
    search.skip("ab and c")
    assert search.feed("d") == StopMatch("cd", 7, 9)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidParams, match="empty"):
        StopStrings(["a", ""])


def test_hold_is_what_may_still_become_a_stop() -> None:
    assert StopStrings(["abc", "d"]).hold == 2
    assert StopStrings([]).hold == 0 and StopStrings([]).feed("abc") is None


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    skipped=st.text("abc", max_size=5),
    pieces=st.lists(st.text("abc", max_size=5), max_size=8),
    include=st.booleans(),
)
def test_pieces_give_what_the_whole_text_gives(
    stops: list[str], skipped: str, pieces: list[str], include: bool
) -> None:
    search = StopStrings(stops, include)
    search.skip(skipped)
    found = next(filter(None, map(search.feed, pieces)), None)
    assert found == plainly(stops, skipped + "".join(pieces), include, len(skipped))


def test_time_is_linear_in_the_text() -> None:
    def seconds(count: int) -> float:
        search = StopStrings(["a" * 50 + "b", "never"])
        started = time.process_time()
        for _ in range(count):
            search.feed("aaaa")
        return time.process_time() - started

    seconds(1_000)
    small, large = (min(seconds(count) for _ in range(3)) for count in (5_000, 40_000))
    assert large < 8 * 3 * small
