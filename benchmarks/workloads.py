"""The workloads on which throughput is compared, identical for every engine.

Each workload is a list of Items: prompt token ids, how many tokens to generate
(end-of-sequence ignored, so every engine does the same work) and how many
samples to draw. They depend on the name and nothing else: same name, same work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire import SamplingParams


@dataclass
class Item:
    """One prompt and what to make of it."""

    prompt: list[int]
    max_tokens: int
    n: int = 1
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0})


def _ids(rng: Random, length: int) -> list[int]:
    return [rng.randrange(10, 10_000) for _ in range(length)]


def mixed(rng: Random, count: int = 256) -> list[Item]:
    """Independent prompts, in and out both uniform in 100..1024 tokens."""
    return [Item(_ids(rng, rng.randint(100, 1024)), rng.randint(100, 1024)) for _ in range(count)]


def prefill(rng: Random, count: int = 1000) -> list[Item]:
    """Long in, short out: summarise or classify."""
    return [Item(_ids(rng, 1024), 128) for _ in range(count)]


def decode(rng: Random, count: int = 512) -> list[Item]:
    """Short in, long out: write."""
    return [Item(_ids(rng, 128), 1024) for _ in range(count)]


def fewshot(rng: Random, count: int = 2000) -> list[Item]:
    """One 2,000-token preamble before every prompt: a few-shot evaluation."""
    shared = _ids(rng, 2000)
    return [
        Item(shared + _ids(rng, rng.randint(50, 150)), rng.randint(50, 150)) for _ in range(count)
    ]


def subjects(rng: Random, groups: int = 57, per_group: int = 40) -> list[Item]:
    """57 subjects with an 800-token preamble each, arriving shuffled."""
    preambles = [_ids(rng, 800) for _ in range(groups)]
    items = [
        Item(p + _ids(rng, rng.randint(50, 150)), 32) for p in preambles for _ in range(per_group)
    ]
    rng.shuffle(items)
    return items


def samples(rng: Random, count: int = 64) -> list[Item]:
    """Sixteen samples of each prompt."""
    return [Item(_ids(rng, 512), 512, n=16) for _ in range(count)]


def tail(rng: Random, count: int = 512) -> list[Item]:
    """Output lengths with a heavy tail: most stop early, a few run to 4,096."""
    return [
        Item(_ids(rng, 256), min(4096, max(8, int(rng.lognormvariate(5.0, 1.0)))))
        for _ in range(count)
    ]


def nucleus(rng: Random, count: int = 512) -> list[Item]:
    """Sampling with temperature, top-k and top-p, as most people set them."""
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
    return [Item(_ids(rng, 256), 256, sampling=dict(sampling)) for _ in range(count)]


def small_mixed(rng: Random, count: int = 64) -> list[Item]:
    """For a CPU and a 135M model: in 32..256, out 32..128."""
    return [Item(_ids(rng, rng.randint(32, 256)), rng.randint(32, 128)) for _ in range(count)]


def small_fewshot(rng: Random, count: int = 96) -> list[Item]:
    """For a CPU and a 135M model: a 512-token preamble before every prompt, 32 tokens out."""
    shared = _ids(rng, 512)
    return [Item(shared + _ids(rng, rng.randint(16, 48)), 32) for _ in range(count)]


GPU: tuple[Callable[[Random], list[Item]], ...] = (
    mixed,
    prefill,
    decode,
    fewshot,
    subjects,
    samples,
    tail,
    nucleus,
)
CPU: tuple[Callable[[Random], list[Item]], ...] = (small_mixed, small_fewshot)
WORKLOADS = {f.__name__: f for f in (*GPU, *CPU)}


def build(name: str, scale: float = 1.0) -> list[Item]:
    """The items of a workload; `scale` < 1 keeps a leading fraction of them."""
    items = WORKLOADS[name](random.Random(name))
    return items[: max(1, round(len(items) * scale))]


def requests(items: Sequence[Item]) -> tuple[list[dict[str, list[int]]], list[SamplingParams]]:
    """What to hand to `LLM.generate`."""
    from quire import SamplingParams

    alike: dict[str, Any] = {"ignore_eos": True, "detokenize": False}
    params = [SamplingParams(n=i.n, max_tokens=i.max_tokens, **alike, **i.sampling) for i in items]
    return [{"prompt_token_ids": i.prompt} for i in items], params


def totals(items: Sequence[Item]) -> tuple[int, int]:
    """(prompt tokens, generated tokens) of a workload."""
    return sum(len(i.prompt) for i in items), sum(i.max_tokens * i.n for i in items)
