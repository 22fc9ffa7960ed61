"""Random runs of the real scheduler over the fake executor."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from quire.cache.groups import ONE_GROUP, Windows, blocks_held
from quire.cache.pool import BlockPool
from quire.config import Speculation
from quire.engine import Engine
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.pacing import Pacing
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from tests.fake_beams import fake_masks
from tests.fakes import VOCAB, FakeExecutor, FakeGuide, expected_output


class FreePositions(PassTimes):
    """Whatever may be right is worth guessing."""

    def line(self) -> tuple[float, float]:
        return 1.0, 0.0


@dataclass
class Setting:
    """Everything that must not change what comes out."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_repeat: int
    depth: int
    caching: bool
    prefix_groups: bool = True
    speculation: Speculation | None = None
    optimism: float = 1.0  # what the scheduler expects of an output, as a share of max_tokens
    windows: Windows = ONE_GROUP
    serving: bool = False

    def engine(
        self,
        pacing: Pacing | None = None,
        *,
        device: FakeExecutor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Engine:
        pool = BlockPool(
            self.num_blocks,
            block_size=self.block_size,
            caching=self.caching,
            windows=self.windows,
        )
        limits = Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_repeat=self.max_repeat,
            prefix_groups=self.prefix_groups,
            speculation=self.speculation,
            pacing=pacing or Pacing(),
            overlap=self.depth > 1,
        )
        scheduler = Scheduler(
            pool,
            limits,
            expected_output=lambda r: max(1.0, r.max_tokens * self.optimism),
            make_masks=partial(fake_masks, VOCAB),
            clock=clock,
            times=FreePositions(),
        )
        scheduler.lanes.is_serving = self.serving
        return Engine(scheduler, device or self.executor(pool), depth=self.depth)

    def executor(self, pool: BlockPool | None = None) -> FakeExecutor:
        return FakeExecutor(
            self.num_blocks,
            self.block_size,
            max_tokens=self.max_num_batched_tokens,
            windows=self.windows,
            pool=pool,
        )


def make_request(number: int, prompt: list[int], max_tokens: int, **options: object) -> Request:
    stops = frozenset(options.pop("stop_ids", ()))  # type: ignore[call-overload]
    salt = "guided" if options.pop("guided", False) else ""
    priority = int(options.pop("priority", 0))  # type: ignore[call-overload]
    background = bool(options.pop("background", False))
    tenant = str(options.pop("tenant", ""))
    return Request(
        number=number,
        prompt_ids=np.array(prompt, np.int32),
        params=SamplingParams(max_tokens=max_tokens, **options),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        noise_key=number * 7919 + 1,
        stop_ids=stops,
        priority=priority,
        cache_salt=salt,
        background=background,
        tenant=tenant,
    )


def is_guided(request: Request) -> bool:
    return request.cache_salt == "guided"


def samples_of(request: Request, order: int = 0) -> list[Sequence]:
    return [
        Sequence(request, sample=i, order=order, guide=FakeGuide() if is_guided(request) else None)
        for i in range(request.params.n)
    ]


def run_all(engine: Engine, requests: list[Request]) -> dict[tuple[int, int], Sequence]:
    """Everything that came out, by (request number, sample); nothing may come out twice."""
    for order, request in enumerate(requests):
        engine.add(samples_of(request, order))
    return drain(engine)


def drain(engine: Engine) -> dict[tuple[int, int], Sequence]:
    done: dict[tuple[int, int], Sequence] = {}
    while not engine.idle:
        for sequence in engine.step().ended:
            key = (sequence.request.number, sequence.sample)
            assert key not in done, f"{key} came out twice"
            done[key] = sequence
    return done


SOME_WINDOWS: tuple[Windows, ...] = (
    ONE_GROUP,
    (None, 5),
    (None, None, 3, 3, 3, 9),
    (7,),
    (4, 4, 11),
)


def random_setting(
    rng: random.Random, longest: int, windows: tuple[Windows, ...] = (ONE_GROUP,)
) -> Setting:
    """With room for a request of the longest, at least."""
    block_size, mine = rng.choice([1, 2, 4, 16]), rng.choice(windows)
    at_least = blocks_held(mine, block_size, longest)
    return Setting(
        windows=mine,
        num_blocks=at_least + rng.choice([0, 1, 3, 10, 60]),
        block_size=block_size,
        max_num_seqs=rng.choice([1, 2, 5, 16]),
        max_num_batched_tokens=rng.choice([4, 16, 64]),
        max_repeat=rng.choice([1, 2, 8]),
        depth=rng.choice([1, 2, 3]),
        caching=rng.random() < 0.7,
        optimism=rng.choice([0.1, 0.5, 1.0]),
        speculation=rng.choice(
            [None, Speculation(rng.choice([1, 2, 5, 20]), 1, 3, rng.choice([0, 0, 4, 16]))]
        ),
        serving=rng.random() < 0.5,
    )


def random_requests(rng: random.Random, guided: float = 0.2) -> list[Request]:
    background = rng.choice([0.0, 0.5, 0.9])  # the share of those who yield
    preambles = [[rng.randrange(5) for _ in range(rng.randint(1, 24))] for _ in range(3)]
    requests = []
    for number in range(rng.randint(1, 12)):
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
        n = rng.choice([1, 1, 1, 2, 5])
        max_tokens = rng.randint(1, 24)
        requests.append(
            make_request(
                number,
                (rng.choice(preambles) if rng.random() < 0.6 else []) + own,
                max_tokens,
                n=n,
                stop_ids=rng.sample(range(VOCAB), rng.choice([0, 40, 40])),
                min_tokens=rng.choice([0, 0, 0, rng.randint(0, max_tokens)]),
                priority=rng.choice([0, 0, 1]),
                guided=rng.random() < guided,
                background=rng.random() < background,
            )
        )
    return requests


def check_random_run(seed: int, windows: tuple[Windows, ...] = (ONE_GROUP,)) -> int:
    """One random run must give what each request gives alone; returns its preemptions."""
    rng = random.Random(seed)
    requests = random_requests(rng)
    longest = max(r.num_prompt + r.max_tokens for r in requests)
    engine = random_setting(rng, longest, windows).engine()
    check_run(engine, requests, seed)
    return engine.scheduler.num_preemptions


def check_run(engine: Engine, requests: list[Request], seed: int) -> list[Sequence]:
    """Each request must give what it gives alone."""
    done = run_all(engine, requests)
    for request in requests:
        for sample in range(request.params.n):
            sequence = done[request.number, sample]
            expected = expected_output(request, sample, guided=is_guided(request))
            assert sequence.output_ids.tolist() == expected, seed
            assert sequence.error is None
    assert len(done) == sum(request.params.n for request in requests)
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_blocks and not pool.holders.any()
    return list(done.values())
