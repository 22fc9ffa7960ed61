"""Media through the CUDA runner: rows in place of embeddings, deeper rows, coordinates and deltas,
against the plain runner on the same plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.executor.cpu.local import LocalExecutor
from quire.executor.shelf import Shelf
from quire.inputs.media.coordinates import coordinates_of
from quire.layer_plan import AttentionPlan
from quire.request import Arrays, MediaItem, Request, Span
from quire.step import Encode
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPECIAL, WEIGHTS, requests
from tests.executor.cuda.test_runner import SPEC as TEXT
from tests.executor.harness import small_config


def with_axes(one: AttentionPlan) -> AttentionPlan:
    pairs = one.head_dim // 2
    axes = tuple(pair % 3 for pair in range(pairs))
    return replace(one, rope=one.rope and replace(one.rope, axes=axes))


SPEC = TEXT.with_attention(with_axes)


class Rows:
    """A tower whose rows depend on the item alone, with one part for a deeper layer."""

    hidden_size = SPEC.hidden_size

    def encode(self, items: Sequence[Encode]) -> list[Tensor]:
        return [
            torch.randn(
                (item.count, 2 * self.hidden_size),
                generator=torch.Generator().manual_seed(int(item.arrays["seed"][0])),
            )
            for item in items
        ]


class Seed:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def arrays(self) -> Arrays:
        return {"seed": np.array([self.seed], np.int64)}

    def encoded(self) -> None:
        pass


ITEMS = [
    MediaItem(1, "image", 12, Seed(1), (1, 3, 4)),
    MediaItem(2, "image", 6, Seed(2), (1, 6, 1)),
]


def seeing(request: Request) -> Request:
    """The request with an item or two among its tokens, the first of some with tokens that see each
    other."""
    ids = request.prompt_ids
    if len(ids) < 24:
        return request
    item = ITEMS[request.number % 2]
    spans = [Span(item, np.arange(2, 2 + item.count), two_way=request.number % 3 > 0)]
    if len(ids) >= 40:
        spans.append(Span(ITEMS[0], np.arange(20, 32)))
    spans = [replace(span, places=span.places.astype(np.int32)) for span in spans]
    compared = ids.copy()
    for span in spans:
        compared[span.places] = -span.item.serial
    coordinates, delta = coordinates_of(len(ids), spans)
    return replace(
        request,
        prompt_ids=compared,
        with_placeholders=ids,
        media=tuple(spans),
        coordinates=coordinates,
        delta=delta,
    )


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("depth", "max_repeat"), [(1, 1), (2, 8)])
def test_media_change_no_token_of_the_cuda_runner(
    depth: int, max_repeat: int, rounded: bool
) -> None:
    config = small_config(depth=depth, max_repeat=max_repeat, max_num_batched_tokens=48)
    asked = [seeing(r) for r in requests(PLAIN + SPECIAL)]
    assert sum(bool(r.media) for r in asked) >= 3 and any(r.delta for r in asked)
    plain = replace(config, depth=1, max_repeat=1)
    local = LocalExecutor(plain, SPEC, dict(WEIGHTS), tower=Rows)
    wanted = [one.output_ids.tolist() for one in answers(local, plain, asked)]
    blind = LocalExecutor(plain, SPEC, dict(WEIGHTS))
    text = [replace(r, prompt_ids=r.plain_ids, media=(), coordinates=None, delta=0) for r in asked]
    assert wanted != [one.output_ids.tolist() for one in answers(blind, plain, text)]
    executor = PlainExecutor(config, SPEC, WEIGHTS, rounded=rounded)
    executor.runner.media.shelf = Shelf(Rows)
    assert [one.output_ids.tolist() for one in answers(executor, config, asked)] == wanted
