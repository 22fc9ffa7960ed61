"""What rows that follow grammars by masks cost the host, without a model.

    python benchmarks/masks.py --rows 256 --steps 60

Scheduler, grammars and matchers are real and go as on a GPU; the executor draws by chance from the
masks, and the time that takes is not counted. A draw depends on its row and its place alone, so two
versions that are right print the same digest of all tokens. `schedule` and `commit` are
processor time of the engine's thread; that of llguidance's matchers is in `all threads`.
`masks` is how long the executor waits for masks without other work: with one core for the matchers
nearly all of their work, with many cores a fraction of it.

    python benchmarks/masks.py --rows 256 --device 1.5 0.008

goes through twice as many answers as rows with a device that takes 1.5 ms a step and 0.008 for each
of its rows: seconds by a clock that the host's processor time and the device's move, with the rows
all together, by turns, and as the scheduler chooses.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shapes import save_tokenizer
from quire.cache.pool import BlockPool
from quire.inputs.tokenizer import Tokenizer
from quire.options import parse_options
from quire.params.structured import StructuredOutputsConfig, StructuredOutputsParams
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.pacing import Pacing
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence as Answer
from quire.session.guides import Guides
from quire.session.loading import load_tokenizer
from quire.step import StepPlan, StepResult
from quire.steps.handles import Handles
from quire.weights.source import locate

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "size": {"type": "integer"},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "size", "parts"],
        }
    },
}
LONG = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 20, "maxLength": 300},
        "text": {"type": "string", "minLength": 500, "maxLength": 2000},
    },
    "required": ["title", "text"],
}
SUMS = r"""
start: line+
line: NAME "=" sum "\n"
sum: product (("+" | "-") product)*
product: value (("*" | "/") value)*
value: NUMBER | NAME | "(" sum ")"
NAME: /[a-z][a-z0-9_]{0,15}/
NUMBER: /[0-9]{1,9}(\.[0-9]{1,4})?/
"""
KINDS: dict[str, dict[str, Any]] = {
    "recursive": {"json": TREE},
    "long strings": {"json": LONG},
    "lark": {"grammar": SUMS},
}
Done = TypeVar("Done")
Clock = Callable[[], float]
PROMPT, BLOCK_SIZE, WARM_UP = 32, 16, 12
QUIET = 0.25  # so many of the steps take no longer: others of the machine disturb those least
# How often a mark (a quote, a bracket, a digit) is drawn where one may come: a model closes what it
# opened, and chance alone would hardly ever.
MARKS = 0.25


def mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers by chance, the same for the same keys."""
    keys = (keys + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ keys >> np.uint64(31)) * np.uint64(0x94D049BB133111EB)
    return keys ^ keys >> np.uint64(29)


@dataclass
class Drawing:
    """Draws by chance what masks allow; rows without one draw any token."""

    vocab_size: int
    marks: npt.NDArray[np.uint32]
    handles: Handles = field(default_factory=Handles)
    waited: float = 0.0  # for the masks of the last plan
    ready: float = 0.0  # when they came, by the processor time of all threads
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a row: its own, and length

    def run(self, plan: StepPlan) -> StepResult:
        masks, started = plan.masks, time.perf_counter()
        if masks is not None:
            self.handles.wait_for(masks)
        self.waited, self.ready = time.perf_counter() - started, time.process_time()
        for start in plan.starts:
            length = len(start.prompt_ids) + len(start.output_ids)
            self.keys[start.row] = start.noise_key, length
        rows = plan.sampled_rows().tolist()
        chance = mixed(np.array([self._next_key(row) for row in rows], np.uint64))
        tokens = (chance % np.uint64(self.vocab_size)).astype(np.int32)
        if masks is not None:
            places = {row: i for i, row in enumerate(rows)}
            for row, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
                tokens[places[row]] = self._drawn(bits, int(chance[places[row]]))
        return StepResult(tokens[:, None], np.ones(len(rows), np.int32))

    def _next_key(self, row: int) -> int:
        key, length = self.keys[row]
        self.keys[row] = key, length + 1
        return key << 32 | length

    def _drawn(self, bits: npt.NDArray[np.uint32], chance: int) -> int:
        if chance % 1000 < 1000 * MARKS and (bits & self.marks).any():
            bits = bits & self.marks
        words = np.flatnonzero(bits)
        word = int(words[(chance >> 16) % len(words)])
        ones = [i for i in range(32) if int(bits[word]) >> i & 1]
        return word * 32 + ones[(chance >> 40) % len(ones)]


@dataclass
class Bench:
    """A scheduler with nothing in it, and what it needs."""

    tokenizer: Tokenizer
    vocab_size: int

    def __post_init__(self) -> None:
        tokens = [self.tokenizer.backend.id_to_token(i) for i in range(self.vocab_size)]
        is_mark = [
            t is not None and len(t) == 1 and t.isascii() and not t.isalpha() for t in tokens
        ]
        is_mark += [False] * (-len(is_mark) % 32)
        self.executor = Drawing(self.vocab_size, np.packbits(is_mark, bitorder="little").view("u4"))
        self.guides = Guides(
            self.tokenizer,
            vocab_size=self.vocab_size,
            eos_ids=self.tokenizer.eos_ids,
            config=StructuredOutputsConfig(),
            handles=self.executor.handles,
        )

    def scheduler(self, rows: int, length: int, clock: Clock | None = None) -> Scheduler:
        """With a clock one whose plans overlap."""
        pool = BlockPool(rows * (length // BLOCK_SIZE + 2), block_size=BLOCK_SIZE)
        overlap, pacing = clock is not None, Pacing(apart=True)
        limits = Limits(rows, max(rows, 8192) + PROMPT, pacing=pacing, overlap=overlap)
        given: Any = {"make_masks": self.guides.make_masks, "accept_all": self.guides.accept_all}
        scheduler = Scheduler(pool, limits, **given, clock=clock or time.monotonic)
        scheduler.use(self.executor.handles)
        return scheduler

    def answers(self, kinds: Sequence[dict[str, Any] | None], count: int) -> list[Answer]:
        rng = np.random.default_rng(0)
        made = []
        for i in range(count):
            kind = kinds[i % len(kinds)]
            asked = None if kind is None else StructuredOutputsParams(**kind)
            params = SamplingParams(
                max_tokens=400, ignore_eos=kind is None, structured_outputs=asked
            )
            prompt = rng.integers(10, 10_000, PROMPT + i % BLOCK_SIZE).astype(np.int32)
            eos = frozenset(self.tokenizer.eos_ids)
            request = Request(i, prompt, params, 400, i, eos_ids=eos)
            compiled = self.guides.compile(params)
            guide = None if compiled is None else compiled.result().matcher()
            made.append(Answer(request, order=i, guide=guide))
        return made


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a step, and slices in it."""

    name: str
    digest: str
    schedule: float  # of the engine's thread, as is commit
    commit: float
    busy: float  # of all threads, without drawing
    masks: float
    slices: float  # rows in a step that compute forced tokens, or begin

    def __str__(self) -> str:
        return (
            f"{self.name:<14} schedule {self.schedule:5.2f}  commit {self.commit:5.2f}  all "
            f"threads {self.busy:6.2f}  masks {self.masks:6.2f} ms a step; "
            f"{self.slices:3.0f} slices; tokens {self.digest}"
        )


def measure(
    bench: Bench,
    name: str,
    kinds: Sequence[dict[str, Any] | None],
    rows: int,
    steps: int,
    profile: cProfile.Profile | None = None,
) -> Cost:
    """Steps in which all rows run; those that end make room for others."""
    scheduler = bench.scheduler(rows, PROMPT + BLOCK_SIZE + 400)
    for answer in bench.answers(kinds, 2 * rows):
        scheduler.add([answer])
    digest, taken = hashlib.sha256(), np.zeros((steps, 5))
    for step in range(-WARM_UP, steps):
        watch = profile if profile is not None and step >= 0 else nullcontext()
        started, before = time.thread_time(), time.process_time()
        with watch:
            plan = scheduler.schedule()
        planned = time.thread_time()
        if plan is None:
            raise RuntimeError(f"step {step}: nothing to do")
        result = bench.executor.run(plan)
        busy = bench.executor.ready - before - time.process_time()
        answered = time.thread_time()
        with watch:
            scheduler.commit(result)
        ended, busy = time.thread_time(), busy + time.process_time()
        digest.update(plan.sampled_rows().tobytes() + result.tokens.tobytes())
        if step >= 0:
            spent = planned - started, ended - answered, busy, bench.executor.waited
            taken[step] = *(1e3 * one for one in spent), len(plan.prefill)
    found = np.quantile(taken, QUIET, axis=0).tolist()
    return Cost(name, digest.hexdigest()[:12], *found)


@dataclass
class Simulated:
    """A host that is measured, and a device that is not there."""

    bench: Bench
    rows: int
    device: tuple[float, float]  # milliseconds of a step, and of a row in it
    now: float = 0.0

    def seconds(self, kinds: Sequence[dict[str, Any] | None], by_turns: bool | None) -> float:
        """For twice as many answers as rows; `by_turns` None: as the scheduler chooses."""
        self.now, free = 0.0, 0.0
        scheduler = self.bench.scheduler(self.rows, PROMPT + BLOCK_SIZE + 400, lambda: self.now)
        if by_turns is not None:
            scheduler.turns.by_turns = by_turns
            scheduler.turns._turn = lambda: None  # type: ignore[method-assign]
        for answer in self.bench.answers(kinds, 2 * self.rows):
            scheduler.add([answer])
        on_their_way: deque[tuple[StepResult, float]] = deque()
        while scheduler.num_unfinished:
            plan = self._timed(scheduler.schedule) if len(on_their_way) < 2 else None
            if plan is not None:
                took = self.device[0] + self.device[1] * len(plan.sampled_rows())
                free = max(self.now, free) + took / 1e3
                on_their_way.append((self.bench.executor.run(plan), free))
            elif on_their_way:
                result, at = on_their_way.popleft()
                self.now = max(self.now, at)
                self._timed(partial(scheduler.commit, result))
        return self.now

    def _timed(self, do: Callable[[], Done]) -> Done:
        started = time.thread_time()
        done = do()
        self.now += time.thread_time() - started
        return done


def cases() -> dict[str, list[dict[str, Any] | None]]:
    alone: dict[str, list[dict[str, Any] | None]] = {name: [kind] for name, kind in KINDS.items()}
    return {
        "plain": [None],
        **alone,
        "all kinds": [*KINDS.values()],
        "half plain": [*KINDS.values(), None, None, None],
    }


def opened_tokenizer(asked: argparse.Namespace) -> tuple[Tokenizer, int]:
    options = parse_options({})
    if not asked.vocabulary:
        tokenizer = load_tokenizer(locate(asked.model, weights=False), options)
    else:
        with TemporaryDirectory() as folder:
            save_tokenizer(Path(folder), asked.vocabulary)
            config = (Path(__file__).parent / "models" / "qwen3-0.6b.json").read_text()
            (Path(folder) / "config.json").write_text(config)
            tokenizer = load_tokenizer(locate(folder, weights=False), options)
    if tokenizer is None:
        raise RuntimeError("the model has no tokenizer")
    return tokenizer, tokenizer.vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer to take")
    parser.add_argument("--vocabulary", type=int, default=0, help="or so many made-up tokens")
    parser.add_argument("--only", nargs="+", choices=sorted(cases()))
    parser.add_argument("--profile", type=Path, help="where to write the profile of the only case")
    parser.add_argument("--device", type=float, nargs=2, help="ms of a step, and of each row in it")
    asked = parser.parse_args()
    bench = Bench(*opened_tokenizer(asked))
    print(f"{asked.rows} rows, {bench.vocab_size:,} tokens, load {os.getloadavg()[0]:.1f}")
    profile = cProfile.Profile() if asked.profile else None
    for name, kinds in cases().items():
        if asked.only and name not in asked.only:
            continue
        if asked.device:
            simulated = Simulated(bench, asked.rows, asked.device)
            took = [simulated.seconds(kinds, way) for way in (False, True, None)]
            said = "together {:6.2f}  by turns {:6.2f}  as chosen {:6.2f} s"
            print(f"{name:<14} {said.format(*took)}", flush=True)
        else:
            print(measure(bench, name, kinds, asked.rows, asked.steps, profile), flush=True)
    if profile is not None:
        profile.dump_stats(asked.profile)
    bench.guides.close()


if __name__ == "__main__":
    main()
