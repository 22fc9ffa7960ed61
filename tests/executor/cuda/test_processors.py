"""Rows with logits processors on the CUDA runner's eager path: the same tokens as anywhere."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.errors import ProcessorFailed
from quire.executor.cpu.local import LocalExecutor
from quire.request import Request
from quire.scheduler.sequence import Sequence
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.executor.harness import small_config


def quick(output_ids: list[int], logits: Tensor) -> Tensor:
    logits[len(output_ids)] += 9.0
    return logits


def slow(prompt_ids: list[int], output_ids: list[int], logits: Tensor) -> Tensor:
    time.sleep(0.005)
    logits[prompt_ids[0]] = -torch.inf
    return logits


def failing(output_ids: list[int], logits: Tensor) -> Tensor:
    if len(output_ids) > 1:
        raise RuntimeError("no more")
    return logits


def asked() -> list[Request]:
    processors: list[tuple[Any, ...]] = [(), (quick,), (slow,), (quick, slow), (failing,)]
    return [
        replace(one, processors=processors[number % len(processors)])
        for number, one in enumerate(requests(PLAIN + SPECIAL, count=15))
    ]


def told(sequences: list[Sequence]) -> list[tuple[list[int], str | None, str]]:
    return [(s.output_ids.tolist(), s.finish_reason, str(s.error)) for s in sequences]


@pytest.mark.parametrize(("depth", "max_repeat"), [(1, 1), (2, 8), (3, 32)])
def test_any_depth_and_repeat_gives_the_plain_runners_tokens(depth: int, max_repeat: int) -> None:
    plain = small_config(num_blocks=256)
    expected = answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, asked())
    config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=128)
    found = answers(PlainExecutor(config, SPEC, WEIGHTS), config, asked())
    assert told(found) == told(expected)
    failed = [s for s in found if s.error is not None]
    assert failed and all(isinstance(s.error, ProcessorFailed) for s in failed)
    assert {failing} == {p for s in failed for p in s.request.processors}
