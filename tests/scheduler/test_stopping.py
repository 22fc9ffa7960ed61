"""Rows that are judged together end as they do when each is judged by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from quire.errors import GrammarFailed, QuireError
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import accept_each, is_stop, judge, judge_together


@dataclass
class Counted:
    """Takes tokens below 90; a text is complete when their sum is even, and ends at `most`. A fault
    is met at 96, and where a sum of 77 or 78 is looked at."""

    most: int
    total: int = 0
    error: QuireError | None = None
    may_force: bool = False
    must_draw: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        if self.total == 77:
            raise LookupError("made up")
        return self.total % 2 == 0

    @property
    def is_stopped(self) -> bool:
        if self.total == 78:
            raise LookupError("made up")
        return self.total >= self.most

    def accept(self, token_id: int) -> bool:
        if token_id == 96:
            raise LookupError("made up")
        if token_id >= 90:
            self.error = GrammarFailed("too large")
            return False
        self.total += token_id
        return True

    def try_accept(self, token_id: int) -> bool:
        raise AssertionError("nothing is tried here")

    def forced(self) -> list[int]:
        return []

    def fork(self) -> Counted:
        return Counted(self.most, self.total)


def sequences(seed: int) -> list[Sequence]:
    rng = random.Random(seed)
    made = []
    for number in range(40):
        most = rng.randint(1, 6)
        least = rng.choice([0, 0, min(2, most)])
        request = Request(
            number=number,
            prompt_ids=np.zeros(3, np.int32),
            params=SamplingParams(max_tokens=most, min_tokens=least),
            max_tokens=most,
            noise_key=0,
            eos_ids=frozenset({7, 8}),
            stop_ids=frozenset({9, 95}) if number % 2 else frozenset(),
        )
        made.append(Sequence(request, guide=Counted(rng.choice([40, 100, 1000]))))
    return made


def may_end(sequence: Sequence, token: int, total: int) -> bool:
    request = sequence.request
    return is_stop(request, token, total) or total >= request.max_tokens


def test_judged_together_or_alone_is_the_same() -> None:
    reasons = set()
    for seed in range(20):
        rng, alone, together = random.Random(seed), sequences(seed), sequences(seed)
        for step in range(6):
            left = [i for i, one in enumerate(alone) if one.finish_reason is None]
            tokens = [rng.choice([7, 8, 9, 95, 91, 96, 30, 38, *range(40, 60)]) for _ in left]
            kept = [judge(alone[i], [token], step) for i, token in zip(left, tokens, strict=True)]
            # What a stop id or the length may end is judged alone in any case.
            drew = dict(zip(left, tokens, strict=True))
            mine = [i for i in left if not may_end(together[i], drew[i], step + 1)]
            some, theirs = [together[i] for i in mine], [drew[i] for i in mine]
            found = dict(zip(mine, judge_together(some, theirs, accept_each), strict=True))
            found |= {i: judge(together[i], [drew[i]], step) for i in left if i not in found}
            assert [found[i] for i in left] == kept
            for one, other in zip(alone, together, strict=True):
                ended = (one.finish_reason, one.stop_reason, str(one.error))
                assert ended == (other.finish_reason, other.stop_reason, str(other.error))
                assert repr(one.guide) == repr(other.guide)
                reasons.add(ended)
    assert {r[0] for r in reasons} == {None, "stop", "length", "error"}
    assert {f"this row failed while its text was followed: {LookupError.__name__}", "too large"} < {
        r[2] for r in reasons
    }
    assert {9, "unfinished_structured_output"} <= {r[1] for r in reasons}
