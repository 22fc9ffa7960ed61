"""Grammars followed on the device: lines of bits and steps from state to state as the host's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from quire.grammar.automaton import Automaton, automaton_of
from quire.grammar.plain_regex import read
from quire.grammar.regular import TokenTable
from quire.steps.automata import DEAD, NO_TOKEN, AutomatonRoom, WalkableGrammar
from quire.steps.row_schema import NUM_COLUMNS, Column

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REGEXES = ["[ab]+", "a{3}b?", "(ab|cd)*x", "[^a]x", "é[a-é]*"]


def vocabulary(rng: random.Random, size: int) -> TokenTable:
    """Random pieces of letters, some ids without a text, two that end."""
    letters = [bytes([b]) for b in b"abcdx"] + ["é".encode(), b"\xc3", b"\xa9"]
    tokens = [b"".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(size - 40)]
    for i in rng.sample(range(len(tokens)), 5):
        tokens[i] = b""
    return TokenTable(tokens, [3, size - 50], size)


def automata() -> list[Automaton]:
    parts = [read(regex) for regex in REGEXES]
    made = [None if part is None else automaton_of(part) for part in parts]
    assert None not in made
    return [one for one in made if one is not None]


def on_device(array: np.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(array.copy()).to(DEVICE)


@pytest.mark.parametrize("size", [96, 1100])
def test_lines_and_steps_are_the_hosts(size: int) -> None:
    from quire.backends.triton.automata import States, make_state_lines, walk_states

    rng, room = random.Random(size), AutomatonRoom(128)
    table = vocabulary(rng, size)
    num_rows, first_line, words = 40, 41, -(-size // 32)
    about = np.full((3, 128), -1, np.int32)
    places = []
    for automaton in automata():
        forced = np.full(len(automaton.accepts), NO_TOKEN, np.int32)
        forced[-1] = 7
        given = (automaton.follows, automaton.accepts, automaton.ends, forced, table.texts)
        place = room.take(WalkableGrammar(*given))
        assert place is not None
        here = slice(place.first, place.first + len(automaton.accepts))
        about[:, here] = np.stack([automaton.ends, automaton.accepts, forced])
        places.append((place, automaton))
    bits = np.zeros(words * 32, np.uint8)
    bits[list(table.eos_ids)] = 1
    end_bits = np.packbits(bits, bitorder="little").view(np.int32)
    texts = (table.texts.offsets, table.texts.texts, end_bits)
    states = States(*map(on_device, (room.follows, about, *texts)))
    masks = torch.full((first_line + 128, words), -1, dtype=torch.int32, device=DEVICE)
    for place, automaton in places:
        count = len(automaton.accepts)
        make_state_lines(states, masks, first_line, place.first, count)
        lines = masks[first_line + place.first :][:count].cpu().numpy().view(np.uint32)
        for state in range(count - 1):
            assert np.array_equal(lines[state], table.mask(automaton, state)), (automaton, state)
        assert lines[-1].tolist() == [1 << 7, *[0] * (words - 1)]
    last = places[-1][0].first + len(places[-1][1].accepts)
    before = np.array([rng.randrange(1, last) for _ in range(num_rows)], np.int32)
    columns = torch.full((9, num_rows + 1), -1, dtype=torch.int32, device=DEVICE)
    columns[8, :num_rows] = on_device(before + first_line)
    columns[8, 5] = 5  # this one draws by a mask of its own
    ints = torch.zeros(NUM_COLUMNS, num_rows + 1, dtype=torch.int64, device=DEVICE)
    rows = np.array([*rng.sample(range(num_rows), 20), -1, 5], np.int32)
    drawn = np.array([rng.choice([3, rng.randrange(size)]) for _ in rows], np.int64)
    failed = np.array([rng.random() < 0.1 for _ in rows])
    seats = np.array([*rng.sample(range(len(rows)), 20), *[-1] * 20], np.int32)
    drew = (on_device(seats), on_device(rows), on_device(drawn), on_device(failed))
    walk_states(states, *drew, columns, ints, first_line)
    walked = {int(rows[i]): int(drawn[i]) for i in seats[:20] if rows[i] >= 0 and not failed[i]}
    walked.pop(5, None)
    assert {t in table.eos_ids for t in walked.values()} == {True, False}
    for row in range(num_rows):
        now, frozen = int(columns[8, row]), int(ints[Column.FROZEN, row])
        if row == 5 or row not in walked:
            assert (now, frozen) == (5 if row == 5 else before[row] + first_line, 0)
            continue
        after = int(room.walk(before[[row]], np.array([walked[row]], np.int32))[0])
        ends = after == DEAD or bool(room.ends[after])
        assert frozen == ends, row
        assert ends or now == first_line + after, row
