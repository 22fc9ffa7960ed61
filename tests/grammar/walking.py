"""A model that knows nothing: it takes any token that the mask allows, with a wish to end."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.grammar.masks import Matcher
from quire.grammar.vocabulary import Bits
from quire.inputs.tokenizer import Tokenizer

CLOSERS = frozenset(b'"]},')


@dataclass(frozen=True, slots=True)
class Walk:
    token_ids: list[int]
    text: str
    ended: bool


def allowed_ids(matcher: Matcher, vocab_size: int) -> npt.NDArray[np.int64]:
    bits = new_bits(vocab_size)
    matcher.fill(bits)
    return ids_in(bits)


def new_bits(vocab_size: int) -> Bits:
    return np.zeros(-(-vocab_size // 32), np.uint32)


def ids_in(bits: Bits) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))


class Walker:
    """Walks over masks; `forcing` takes forced tokens without a mask, as the engine may."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._vocab_size, self._ends = vocab_size, set(tokenizer.eos_ids)
        self._pieces = tokenizer.token_bytes.pieces(False, False)
        self._closing = np.array(
            [not CLOSERS.isdisjoint(self._pieces[i]) for i in range(tokenizer.vocab_size)]
        )

    def walk(
        self, matcher: Matcher, seed: int, *, max_tokens: int = 400, forcing: bool = False
    ) -> Walk:
        rng = random.Random(seed)
        taken: list[int] = []
        while len(taken) < max_tokens and not matcher.is_stopped:
            forced = matcher.forced() if forcing else []
            token = forced[0] if forced else self._choose(matcher, rng, len(taken))
            if token in self._ends:
                break
            if not matcher.accept(token):
                assert matcher.error is not None
                raise matcher.error
            taken.append(token)
        ended = matcher.is_complete
        data = b"".join(self._pieces[i] for i in taken)
        return Walk(taken, data.decode(errors="replace"), ended)

    def _choose(self, matcher: Matcher, rng: random.Random, so_far: int) -> int:
        ids = allowed_ids(matcher, self._vocab_size)
        ends = [int(i) for i in ids if int(i) in self._ends]
        if ends and (rng.random() < 0.3 or so_far > 60):
            return ends[0]
        closing = ids[self._closing[ids]]
        if len(closing) and rng.random() < (0.3 if so_far < 30 else 0.9):
            return int(rng.choice(closing.tolist()))
        return int(rng.choice(ids.tolist()))
