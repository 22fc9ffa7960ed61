"""Beam search for the fake executor: its candidates, and what any correct search must find.

Logprobs are multiples of 1/1024, so sums are exact and ties are many: they must be broken in the
same way by everyone (the better beam first, then the lower token id).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quire.request import Ints, Request
from quire.scheduler.beam_rule import SearchRules
from quire.scheduler.sequence import Guide
from quire.step import Floats, Masks


def logprobs_after(chain: int, vocab: int) -> Floats:
    """The "logprobs" of all tokens after everything in `chain`."""
    x = np.arange(vocab, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(chain)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(32))
    return -(x % np.uint64(6000)).astype(np.float32) / np.float32(1024)


class FussyGuide:
    """A grammar that forbids every third token, which ones depends on all tokens so far."""

    error = None
    is_complete = True
    is_stopped = False
    may_force = False
    walkable = None
    state = 0

    def __init__(self, accepted: tuple[int, ...] = ()) -> None:
        self.accepted, self.must_draw = accepted, list[int]()

    def accept(self, token_id: int) -> bool:
        assert fussy(list(self.accepted), token_id + 1)[token_id], "a forbidden token"
        self.accepted += (token_id,)
        return True

    def try_accept(self, token_id: int) -> bool:
        raise AssertionError("nothing is tried here")

    def forced(self) -> list[int]:
        return []

    def fork(self) -> FussyGuide:
        return FussyGuide(self.accepted)


def fussy(accepted: list[int], vocab: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which tokens FussyGuide allows."""
    return (np.arange(vocab) + sum(accepted) * 7 + len(accepted)) % 3 != 0


def fake_masks(vocab: int, rows: Ints, guides: Sequence[Guide]) -> Masks:
    """The masks of rows that follow a grammar; all but FussyGuide allow everything."""
    bits = np.zeros((len(rows), -(-vocab // 32) * 4), np.uint8)
    for line, guide in zip(bits, guides, strict=True):
        allowed = np.ones(vocab, bool)
        if isinstance(guide, FussyGuide):
            allowed = fussy(list(guide.accepted), vocab)
        packed = np.packbits(allowed, bitorder="little")
        line[: len(packed)] = packed
    return Masks(rows, bits.view(np.uint32))


@dataclass
class Found:
    tokens: list[int]
    score: np.float32
    reason: str


def expected_beams(
    request: Request,
    rules: SearchRules,
    chain: Callable[[list[int]], int],
    *,
    vocab: int,
    guided: bool = False,
) -> list[Found]:
    """What the search must find, worked out over the whole vocabulary and with no rows.

    Beams that do not exist have a score of -1e9, as in the implementation this follows.
    """
    width = rules.width
    running: list[tuple[list[int], np.float32]] = [([], np.float32(0))]
    finished: list[Found] = []
    prompt = request.prompt_ids.tolist()
    for length in range(1, rules.max_tokens + 1):
        table = np.full((width, vocab), -1e9, np.float32)
        for i, (tokens, score) in enumerate(running):
            table[i] = score + logprobs_after(chain([*prompt, *tokens]), vocab)
            if guided:
                table[i, ~fussy(tokens, vocab)] = -np.inf
        divisor = np.float32(float(length) ** rules.length_penalty)
        order = np.argsort(-table.reshape(-1), kind="stable")[: rules.num_candidates]
        going_on = []
        for place, at in enumerate(order.tolist()):
            beam, token = divmod(at, vocab)
            score = table[beam, token]
            if score <= -1e8:
                continue
            tokens = [*running[beam][0], token]
            stops = token in rules.end_ids
            if stops or length == rules.max_tokens:
                if place < width:
                    finished.append(Found(tokens, score / divisor, "stop" if stops else "length"))
            else:
                going_on.append((tokens, score))
        finished = sorted(finished, key=lambda f: -f.score)[:width]
        running = going_on[:width]
        if not running:
            break
        if len(finished) == width:
            at_length = length
            if rules.early_stopping == "never" and rules.length_penalty > 0:
                at_length = rules.max_tokens
            best = running[0][1] / np.float32(float(at_length) ** rules.length_penalty)
            if rules.early_stopping is True or width == 1 or best <= finished[-1].score:
                break
    return finished
