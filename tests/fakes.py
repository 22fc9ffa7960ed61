"""An executor without a model, that notices every wrong block.

Each KV slot holds a hash of everything before it. Every read follows the whole chain from
position 0 through the row's block table, so one wrong block id, one missing copy or one stale
row changes the token or fails at once. The next token is that hash mixed with the row's noise.

Each group of layers has such slots of its own. One with a window reads no further back than that,
must find the same chain there, and fails on a block that nobody holds any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.cache.groups import ONE_GROUP, Windows
from quire.cache.pool import BlockPool
from quire.executor.executor import ExecutorFacts
from quire.request import Request
from quire.scheduler.guesses import continuation, look_up
from quire.step import Candidates, Guessing, RowStart, Scores, Slice, StepPlan, StepResult, Targets
from quire.steps.handles import Handles
from tests.fake_beams import logprobs_after

MASK = (1 << 63) - 1
VOCAB = 997


def mix(a: int, b: int, c: int) -> int:
    x = (
        a * 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9 + c * 0x94D049BB133111EB + 0x1234567
    ) & MASK
    x ^= x >> 29
    x = (x * 0xBF58476D1CE4E5B9) & MASK
    return x ^ (x >> 32)


def draw(chain: int, noise_key: int, sample: int) -> int:
    """Some requests know three tokens only, so that guessing these pays."""
    return mix(chain, noise_key, sample) % (VOCAB if noise_key % 3 else 3)


def scored(
    chain: int, token: int, num_top: int, named: Sequence[int] = ()
) -> tuple[float, int, list[int], list[float]]:
    """Logprob and rank of a token after everything in `chain`, the likeliest there, and others."""
    likeliest = [mix(chain, i, 5) % VOCAB for i in range(num_top)]
    logprob, *others = (-(mix(chain, each, 77) % 4096) / 128 for each in (token, *named))
    rank = mix(chain, token, 3) % 50 + 1
    return logprob, rank, [*likeliest, *named], [*(-i / 4 for i in range(num_top)), *others]


def scores_of(chains: list[int], targets: Targets) -> Scores:
    none: list[list[int]] = [[]] * len(targets)
    named = none if targets.named is None else targets.named.tolist()
    asked = zip(targets.offsets.tolist(), targets.token_ids.tolist(), named, strict=True)
    lines = [scored(chains[at], token, targets.num_top, more) for at, token, more in asked]
    logprobs, ranks, top_ids, top_logprobs = zip(*lines, strict=True)
    return Scores(
        targets.token_ids,
        np.array(logprobs, np.float32),
        np.array(ranks, np.int32),
        np.array(top_ids, np.int32).reshape(len(lines), -1),
        np.array(top_logprobs, np.float32).reshape(len(lines), -1),
    )


def forced_after(token: int) -> list[int]:
    """What FakeGuide forces after a token: now and then a few."""
    return [(token * 7 + i) % VOCAB for i in range(token % 4)] if token % 3 == 0 else []


class FakeGuide:
    """A grammar that forbids nothing, but forces tokens."""

    error = None
    is_complete = True
    is_stopped = False
    may_force = True
    walkable = None
    state = 0

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.must_draw: list[int] = []

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return True

    def try_accept(self, token_id: int) -> bool:
        raise AssertionError("nothing is tried here")

    def forced(self) -> list[int]:
        return forced_after(self.accepted[-1])

    def fork(self) -> FakeGuide:
        raise AssertionError("only beams fork their guides")


def expected_output(request: Request, sample: int, *, guided: bool = False) -> list[int]:
    """What any correct engine makes of this request: the same arithmetic without any blocks."""
    chain = 0
    for position, token in enumerate(request.prompt_ids.tolist()):
        chain = mix(chain, token, position)
    output: list[int] = []
    stops = request.eos_ids | request.stop_ids
    while True:
        drawn = draw(chain, request.noise_key, sample)
        for token in [drawn, *(forced_after(drawn) if guided else [])]:
            output.append(token)
            if token in stops and len(output) >= request.params.min_tokens:
                return output
            if len(output) >= request.max_tokens:
                return output
            chain = mix(chain, token, request.num_prompt + len(output) - 1)


@dataclass
class FakeRow:
    start: RowStart
    last: int
    length: int
    tables: list[dict[int, int]] = field(default_factory=list)  # one for each group of layers
    frozen: bool = False


@dataclass
class Done:
    value: StepResult

    def result(self) -> StepResult:
        return self.value


class FakeExecutor:
    """Computes plans at once; depth is shown by when the engine asks for the result."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_tokens: int | None = None,
        windows: Windows = ONE_GROUP,
        pool: BlockPool | None = None,
    ) -> None:
        """`pool`: the scheduler's, to tell who reads a block that nobody holds."""
        self.num_blocks, self.block_size, self.max_tokens = num_blocks, block_size, max_tokens
        self.windows, self.pool = windows, pool
        slots = num_blocks * block_size
        self.chain = np.zeros(slots, np.int64)  # hash up to and including this position
        self.before = np.zeros(slots, np.int64)  # hash before it
        self.position = np.full(slots, -1, np.int64)
        self.group = np.full(slots, -1, np.int64)  # that wrote it
        self.rows: dict[int, FakeRow] = {}
        self.handles = Handles()
        self.computed_tokens = 0
        self.plans: deque[StepPlan] = deque(maxlen=50)

    def start(self) -> ExecutorFacts:
        return ExecutorFacts(self.num_blocks, "fake", "none")

    def reset(self) -> None:
        self.rows.clear()

    def close(self) -> None:
        self.rows.clear()

    def submit(self, plan: StepPlan) -> Done:
        self.plans.append(plan)
        if self.max_tokens is not None:
            num_tokens = sum(len(s.token_ids) for s in plan.prefill) + len(plan.decode)
            assert num_tokens <= self.max_tokens, "the step's budget was exceeded"
        for row in plan.ends.tolist():
            del self.rows[row]
        for start in plan.starts:
            assert start.row not in self.rows, f"row {start.row} is taken"
            tokens = [*start.prompt_ids.tolist(), *start.output_ids.tolist()]
            tables: list[dict[int, int]] = [{} for _ in self.windows]
            self.rows[start.row] = FakeRow(start, tokens[-1], len(tokens), tables)
        a = plan.assigned
        entries = set(zip(a.rows.tolist(), a.indices.tolist(), strict=True))
        assert len(entries) == len(a.rows), "an entry of a table is assigned twice"
        for group, blocks in enumerate(a.blocks.reshape(len(self.windows), -1).tolist()):
            for row, index, block in zip(a.rows.tolist(), a.indices.tolist(), blocks, strict=True):
                self.rows[row].tables[group][index] = block
        for old, new in plan.copies:
            size = self.block_size
            for array in (self.chain, self.before, self.position, self.group):
                array[new * size : new * size + size] = array[old * size : old * size + size]
        place = dict(zip(plan.decode.rows.tolist(), plan.decode.positions.tolist(), strict=True))
        for row, token in zip(plan.chosen.rows.tolist(), plan.chosen.tokens.tolist(), strict=True):
            self.rows[row].last, self.rows[row].length = token, place[row] + 1
        self._check_groups(plan)
        return Done(self._run(plan))

    def _check_groups(self, plan: StepPlan) -> None:
        for group in plan.groups:
            for number, blocks in enumerate(group.blocks.reshape(self.windows.count(None), -1)):
                for row in group.rows.tolist():
                    table = self.rows[row].tables[number]
                    assert [table[i] for i in range(len(blocks))] == blocks.tolist()
                    assert len(blocks) * self.block_size <= self.rows[row].length

    def _slots(self, table: dict[int, int], first: int, length: int) -> np.ndarray:
        """Of positions first .. length."""
        size = self.block_size
        numbers = range(first // size, -(-length // size))
        blocks = np.array([table[i] for i in numbers], np.int64)
        assert (blocks >= 0).all(), "a block that was given back"
        if self.pool is not None:
            assert (self.pool.holders[blocks] > 0).all(), "a block that nobody holds"
        slots = blocks[:, None] * size + np.arange(size)
        return slots.reshape(-1)[first % size : first % size + length - first]

    def _feed(self, row: FakeRow, position: int, token: int) -> int:
        """Write one token's KV and read everything before it, as far as each group sees it."""
        pasts, here = set(), []
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, position - window + 1)
            slots = self._slots(row.tables[group], first, position + 1)
            past = slots[:-1]
            assert (self.group[past] == group).all(), "a slot of another group"
            assert (self.position[past] == np.arange(first, position)).all(), "another position"
            chain = self.chain[past]
            assert (self.before[past][1:] == chain[:-1]).all(), "a slot of another past"
            if len(chain) or not position:
                pasts.add(int(chain[-1]) if position else 0)
            here.append(slots[-1])
        assert len(pasts) == 1, "groups with different pasts"
        before = pasts.pop()
        self.chain[here] = mix(before, token, position)
        self.before[here], self.position[here] = before, position
        self.group[here] = np.arange(len(here))
        self.computed_tokens += 1
        return int(self.chain[here[0]])

    def _run(self, plan: StepPlan) -> StepResult:
        tokens: list[list[int]] = []
        scores: dict[int, Scores] = {}
        ends: list[int] = []  # the chain each row draws from
        passes: list[tuple[int, int]] = []  # of decode rows, and their guesses
        for number, s in enumerate(plan.prefill):
            row = self.rows[s.row]
            chains = [
                self._feed(row, s.start + i, token) for i, token in enumerate(s.token_ids.tolist())
            ]
            chain = chains[-1]
            if s.targets is not None:
                scores[number] = scores_of(chains, s.targets)
            ends += [chain] * len(s.sample_into)
            for into in s.sample_into:
                tokens.append(self._draw_guessed(self.rows[into], s, chains))
        for r, position in zip(
            plan.decode.rows.tolist(), plan.decode.positions.tolist(), strict=True
        ):
            row = self.rows[r]
            assert row.frozen or position == row.length - 1, "fed at a wrong position"
            made, chain, told = [], 0, (0, 0)
            if r in plan.tried:
                made = self._try(row, int(plan.num_tried[plan.tried == r][0]))
            elif plan.guessing is not None:
                made, told = self._guess(plan.guessing, len(passes), row, plan.repeat)
            else:
                made, chain = self._decode(row, 1 if r in plan.single else plan.repeat)
            ends.append(chain)
            tokens.append(made)
            passes.append(told)
        most = max(plan.most_drawn, *(1 + s.num_guessed for s in plan.prefill), 1)
        padded = [made + [-1] * (most - len(made)) for made in tokens]
        return StepResult(
            np.array(padded, np.int32).reshape(len(tokens), most),
            np.array([len(made) for made in tokens], np.int32),
            scored=scores,
            candidates=self._candidates(plan, ends),
            passes=np.array([one for one, _ in passes] if plan.guessing else [], np.int32),
            guessed=np.array([one for _, one in passes] if plan.guessing else [], np.int32),
        )

    def _decode(self, row: FakeRow, steps: int) -> tuple[list[int], int]:
        """What a row draws in so many steps, and the chain that it drew the last from."""
        made, chain = list[int](), 0
        while len(made) < steps and not row.frozen:
            chain = self._feed(row, row.length - 1, row.last)
            made.append(self._draw(row, chain))
        return made, chain

    def _try(self, row: FakeRow, steps: int) -> list[int]:
        """All that a row draws without its processors stands."""
        return self._decode(row, steps)[0]

    def _guess(
        self, asked: Guessing, line: int, row: FakeRow, steps: int
    ) -> tuple[list[int], tuple[int, int]]:
        """What decode row `line` draws with guesses in each pass: how many passes, and guesses."""
        made, num_passes, num_guessed = list[int](), 0, 0
        while num_passes < steps and not row.frozen:
            guesses = self._look_up(asked, line, row, made)
            fed = enumerate([row.last, *guesses])
            chains = [self._feed(row, row.length - 1 + i, token) for i, token in fed]
            made += self._draw_all(row, chains, guesses)
            num_passes, num_guessed = num_passes + 1, num_guessed + len(guesses)
        return made, (num_passes, num_guessed)

    def _look_up(self, asked: Guessing, line: int, row: FakeRow, made: list[int]) -> list[int]:
        if not asked.lengths[line]:
            return []
        known = np.append(asked.tokens[line, : asked.lengths[line]], made).astype(np.int32)
        assert known[-1] == row.last and len(known) == row.length, "another row's history"
        left = row.start.max_tokens - (row.length - len(row.start.prompt_ids)) - 1
        begin, agreed = look_up(known, asked.shortest, asked.longest)
        return continuation(known, begin, min(asked.count, left)).tolist() if agreed else []

    def _draw_guessed(self, row: FakeRow, s: Slice, chains: list[int]) -> list[int]:
        """What a row draws at the end of a slice, and before it at each guess."""
        guesses = s.token_ids[len(s.token_ids) - s.num_guessed :].tolist()
        if guesses:
            assert s.start == row.length - 1 and s.token_ids[0] == row.last, "fed a wrong token"
        return self._draw_all(row, chains[-1 - s.num_guessed :], guesses)

    def _draw_all(self, row: FakeRow, chains: list[int], guesses: list[int]) -> list[int]:
        """As far as the guesses are right."""
        made = []
        for chain, guess in zip(chains, [*guesses, -1], strict=True):
            made.append(self._draw(row, chain))
            if made[-1] != guess or row.frozen:
                break
        return made

    def _candidates(self, plan: StepPlan, ends: list[int]) -> Candidates | None:
        lines = np.flatnonzero(np.isin(plan.sampled_rows(), plan.searched)).astype(np.int32)
        if not len(lines):
            return None
        values = np.stack([logprobs_after(ends[line], VOCAB) for line in lines])
        for i, line in enumerate(lines.tolist()):
            mask = None if plan.masks is None else plan.masks.rows == plan.sampled_rows()[line]
            if plan.masks is not None and mask is not None and mask.any():
                bits = np.unpackbits(plan.masks.bits[mask][0].view(np.uint8), bitorder="little")
                values[i, bits[:VOCAB] == 0] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")[:, : plan.num_candidates]
        best = np.take_along_axis(values, order, 1)
        return Candidates(lines, order.astype(np.int32), best)

    def _draw(self, row: FakeRow, chain: int) -> int:
        start = row.start
        token = draw(chain, start.noise_key, start.sample)
        row.last, row.length = token, row.length + 1
        written = row.length - len(start.prompt_ids)
        stopped = token in start.stop_ids and written >= start.sampling.min_tokens
        row.frozen = stopped or written >= start.max_tokens
        return token
