"""Hidden states by the CUDA runner: the same as the plain runner's, in any company."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from quire.executor.cpu.local import LocalExecutor
from quire.request import HiddenKind, Request
from quire.sampling_params import SamplingParams
from quire.scheduler.hidden import joined
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.specs import small_config

KINDS: tuple[HiddenKind, ...] = ("first", "last", "sum", "all")


def hidden_requests(count: int = 12, seed: int = 5) -> list[Request]:
    rng = random.Random(seed)
    both = (False, True)
    params = [SamplingParams(temperature=0, skip_reading_prefix_cache=skip) for skip in both]
    made = []
    for number in range(100, 100 + count):
        kind = KINDS[number % len(KINDS)]
        ids = [rng.randrange(200) for _ in range(rng.randint(1, 45))]
        made.append(
            Request(
                number=number,
                prompt_ids=np.array(ids, np.int32),
                params=params[kind != "last"],
                max_tokens=0,
                noise_key=0,
                hidden=kind,
                hidden_from=rng.randrange(len(ids)) * (number % 3 > 0),
            )
        )
    return made


@pytest.mark.parametrize("company", [[], PLAIN, SPECIAL], ids=["alone", "plain", "special"])
@pytest.mark.parametrize(("depth", "num_blocks", "rounded"), [(1, 128, False), (2, 40, True)])
def test_hidden_states_equal_the_plain_runners(
    company: list[dict[str, object]], depth: int, num_blocks: int, rounded: bool
) -> None:
    config = small_config(depth=depth, max_repeat=8, num_blocks=num_blocks)
    asked = hidden_requests() + (requests(company) if company else [])
    got = answers(PlainExecutor(config, SPEC, WEIGHTS, rounded=rounded), config, asked)
    plain = replace(config, device="cpu", depth=1, max_repeat=1, num_blocks=512)
    wanted = answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, asked)
    num_checked = 0
    for one, other in zip(got, wanted, strict=True):
        kind = one.request.hidden
        if kind is None:
            continue
        mine, theirs = joined(kind, one.hidden), joined(kind, other.hidden)
        count = one.request.num_prompt - one.request.hidden_from
        assert len(mine) == (count if kind == "all" else 1)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
        num_checked += 1
    assert num_checked == 12
