"""Plans and results as bytes: they come back equal, and no bytes do harm."""

from __future__ import annotations

import contextlib
import random
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from quire.params.row_sampling import RowSampling
from quire.sampling_params import SamplingParams
from quire.step import (
    Assigned,
    Candidates,
    Chosen,
    DecodeRows,
    DrawnScores,
    Encode,
    Guessing,
    Masks,
    MediaPart,
    PrefixGroup,
    RowStart,
    Scores,
    Slice,
    StepPlan,
    StepResult,
    Targets,
)
from quire.steps.codec import BadStep, decode, encode
from quire.steps.ranked import RankPlan, RankResult


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and one.tobytes() == other.tobytes()
    if is_dataclass(one) or isinstance(one, msgspec.Struct):
        names = getattr(one, "__struct_fields__", None) or [f.name for f in fields(one)]
        return all(equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(equal, one.values(), other.values()))
    return bool(one == other)


def ints(rng: random.Random, most: int = 6) -> Any:
    return np.array([rng.randrange(-1, 2**31) for _ in range(rng.randrange(most))], np.int32)


def floats(rng: random.Random, *shape: int) -> Any:
    made = np.array([rng.gauss(0, 9) for _ in range(int(np.prod(shape)))], np.float32)
    return np.where(made > 20, -np.inf, made).astype(np.float32).reshape(shape)


def sampling(rng: random.Random) -> RowSampling:
    chosen = SamplingParams(
        temperature=rng.choice([0.0, 0.3, 1.7]),
        top_k=rng.choice([-1, 0, 5]),
        top_p=rng.choice([1.0, 0.31]),
        min_p=rng.choice([0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        presence_penalty=rng.choice([0.0, -0.5]),
        min_tokens=rng.choice([0, 2]),
        logit_bias=rng.choice([None, {3: 1.5, 9: -100.0}]),
        allowed_token_ids=rng.choice([None, [1, 2, 3]]),
        **rng.choice([{}, {"logprobs": 5}, {"logprobs": 0}, {"logprob_token_ids": [4, 7]}]),
    )
    chosen._bad_words_token_ids = rng.choice([None, [[1], [2, 3]]])
    return RowSampling.of(chosen)


def row_start(rng: random.Random) -> RowStart:
    return RowStart(
        rng.randrange(99), sampling(rng), rng.getrandbits(64), rng.randrange(9), ints(rng),
        ints(rng), ints(rng), rng.randrange(2**31), rng.randrange(-1, 99), rng.random() < 0.5,
        rng.random() < 0.5, rng.randrange(-9, 9), rng.randrange(9),
    )  # fmt: skip


def piece(rng: random.Random) -> Slice:
    named = rng.choice([None, np.arange(6, dtype=np.int32).reshape(3, 2)])
    targets = Targets(ints(rng), ints(rng), rng.choice([-1, 0, 3]), rng.random() < 0.5, named)
    rows = tuple(rng.randrange(50) for _ in range(rng.randrange(3)))
    return Slice(rng.randrange(9), rng.randrange(99), ints(rng, 40), rows,
                 rng.choice([None, targets]), rng.randrange(3),
                 rng.choice([None, "first", "sum"]), rng.randrange(9),
                 tuple(MediaPart(i, rng.randrange(9), ints(rng)) for i in range(rng.randrange(3))),
                 rng.choice([None, np.arange(6, dtype=np.int32).reshape(3, 2)]))  # fmt: skip


def encoded(rng: random.Random) -> Encode:
    pixels = np.frombuffer(rng.randbytes(12), np.uint8).reshape(2, 2, 3)
    grid = np.array([[1, 2, 2]], np.int64)
    return Encode(rng.randrange(99), "image", 4, {"pixels": pixels, "grid": grid})


def scores(rng: random.Random) -> Scores:
    lines, top = rng.randrange(4), rng.randrange(4)
    ids = np.arange(lines * top, dtype=np.int32).reshape(lines, top)
    return Scores(np.arange(lines, dtype=np.int32), floats(rng, lines),
                  np.ones(lines, np.int32), ids, floats(rng, lines, top))  # fmt: skip


def plan(rng: random.Random) -> StepPlan:
    bits = np.array([[rng.getrandbits(32) for _ in range(3)]], np.uint32)
    return StepPlan(
        starts=tuple(row_start(rng) for _ in range(rng.randrange(3))),
        ends=ints(rng),
        assigned=Assigned(ints(rng), ints(rng), ints(rng)),
        copies=tuple((rng.randrange(99), rng.randrange(99)) for _ in range(rng.randrange(3))),
        prefill=tuple(piece(rng) for _ in range(rng.randrange(3))),
        decode=DecodeRows(ints(rng, 90), ints(rng)),
        groups=tuple(PrefixGroup(ints(rng), ints(rng)) for _ in range(rng.randrange(2))),
        masks=rng.choice([None, Masks(ints(rng), bits)]),
        repeat=rng.choice([1, 32]),
        released=ints(rng),
        chosen=Chosen(ints(rng), ints(rng)),
        searched=ints(rng),
        num_candidates=rng.randrange(9),
        single=ints(rng),
        forgotten=ints(rng),
        encode=tuple(encoded(rng) for _ in range(rng.randrange(2))),
        guessing=rng.choice([None, Guessing(3, 1, 8, ints(rng).reshape(1, -1), ints(rng))]),
    )


def result(rng: random.Random) -> StepResult:
    rows, repeat = rng.randrange(5), rng.randrange(1, 4)
    return StepResult(
        np.arange(rows * repeat, dtype=np.int32).reshape(rows, repeat),
        np.full(rows, repeat, np.int32),
        tuple(DrawnScores(ints(rng), scores(rng)) for _ in range(rng.randrange(3))),
        {i: scores(rng) for i in range(rng.randrange(3))},
        tuple(range(rng.randrange(3))),
        {2: "it raised ü"} if rng.random() < 0.3 else {},
        {0: 7} if rng.random() < 0.3 else {},
        rng.choice([None, Candidates(ints(rng), ints(rng), floats(rng, 3))]),
        {i: floats(rng, 2, 3) for i in range(rng.randrange(3))},
        ints(rng),
        ints(rng),
        left_none=tuple(range(rng.randrange(3))),
    )


def test_random_plans_and_results_come_back_equal(long_mode: bool) -> None:
    rng = random.Random(5)
    for number in range(10_000 if long_mode else 2000):
        for made in (plan(rng), result(rng)) if number % 4 == 0 else (plan(rng),):
            assert equal(decode(encode(made)), made), number


def test_what_goes_to_ranks_and_comes_from_them_comes_back_equal() -> None:
    rng, logits = random.Random(6), {3: np.arange(5, dtype=np.float32)}
    for made in (RankPlan(plan(rng), logits, {4: "why"}), RankResult(result(rng), logits)):
        assert equal(decode(encode(made)), made)


def test_arrays_come_back_aligned_and_apart_from_the_bytes() -> None:
    data = encode(StepPlan(ends=np.arange(9, dtype=np.int32)))
    back = decode(data)
    back.ends[0] = 5
    assert back.ends.flags.aligned and decode(data).ends[0] == 0


def test_what_is_no_plain_data_is_refused_when_it_is_written() -> None:
    for wrong in (print, np.zeros(2, np.complex64), np.int32(3)):
        with pytest.raises(TypeError, match="part of a step"):
            encode(StepPlan(repeat=wrong))  # type: ignore[arg-type]


def test_what_is_not_of_its_fields_type_is_no_step() -> None:
    for wrong in ([1], b"x", "1", np.zeros(2, np.int32)):
        data = encode(StepPlan(repeat=wrong))  # type: ignore[arg-type]
        with pytest.raises(BadStep, match="repeat"):
            decode(data)


def test_bytes_that_are_no_step_are_a_typed_error() -> None:
    rng = random.Random(9)
    whole = encode(plan(rng))
    for cut in range(len(whole)):
        with pytest.raises(BadStep):
            decode(whole[:cut])
    for _ in range(3000):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        with contextlib.suppress(BadStep):
            decode(bytes(changed))
    with pytest.raises(BadStep):
        decode(whole + b"\0")
    for wrong in (b"", bytes([7, 255]), encode(StepPlan(ends=np.zeros(4, np.int32)))[:-4]):
        with pytest.raises(BadStep):
            decode(wrong)
