"""Media through the CUDA runner: rows in place of embeddings, deeper rows, coordinates and deltas,
and sounds that rows hear, against the plain runner on the same plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.shelf import Shelf
from quire.executor.sound_pages import SoundPages
from quire.inputs.media.reader import coordinates_of
from quire.layer_plan import AttentionPlan, CrossPlan, Rope
from quire.request import Arrays, MediaItem, Request, Span
from quire.step import Encode
from quire.weights.load import dummy_weights
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_interpreted import STATES, InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPECIAL, WEIGHTS, requests
from tests.executor.cuda.test_runner import SPEC as TEXT
from tests.specs import small_config


def with_axes(one: AttentionPlan) -> AttentionPlan:
    pairs = one.head_dim // 2
    axes = tuple(pair % 3 for pair in range(pairs))
    return replace(one, rope=one.rope and replace(one.rope, axes=axes))


SPEC = TEXT.with_attention(with_axes)


class Rows:
    """A tower whose rows depend on the item alone, with one part for a deeper layer."""

    hidden_size = SPEC.hidden_size
    row_width = 2 * hidden_size

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
    executor = PlainExecutor(config, SPEC, WEIGHTS, rounded=rounded, shelf=Shelf(Rows))
    assert [one.output_ids.tolist() for one in answers(executor, config, asked)] == wanted


def test_captured_passes_of_text_keep_no_coordinates_of_others() -> None:
    """Text behind prompts whose positions have three coordinates, in one bucket again and again."""
    config = small_config(depth=1, max_repeat=1, max_num_batched_tokens=48, max_num_seqs=2)
    some = requests(PLAIN[:1], count=12)
    long = [r for r in map(seeing, some) if r.delta][:2]
    text = [replace(r, prompt_ids=r.plain_ids[-5 - 3 * i :]) for i, r in enumerate(some[:8])]
    asked = [*long, *text]
    local = LocalExecutor(config, SPEC, dict(WEIGHTS), tower=Rows)
    wanted = [one.output_ids.tolist() for one in answers(local, config, asked)]
    executor = PlainExecutor(config, SPEC, WEIGHTS, rounded=True, shelf=Shelf(Rows))
    assert [one.output_ids.tolist() for one in answers(executor, config, asked)] == wanted


class FlatRows(Rows):
    """Nothing for deeper layers."""

    row_width = SPEC.hidden_size

    def encode(self, items: Sequence[Encode]) -> list[Tensor]:
        return [rows[:, : self.hidden_size] for rows in super().encode(items)]


def test_captured_passes_have_media_where_embeddings_would_be() -> None:
    """Rows alone, and no three coordinates: beside slices of text, in buckets that are used again
    with other rows at other tokens."""
    config = small_config(depth=2, max_repeat=4, max_num_batched_tokens=300, block_size=16)
    asked = [replace(seeing(r), coordinates=None, delta=0) for r in requests(PLAIN + SPECIAL)]
    asked = [replace(r, media=tuple(replace(s, two_way=False) for s in r.media)) for r in asked]
    plain = replace(config, depth=1, max_repeat=1)
    local = LocalExecutor(plain, TEXT, dict(WEIGHTS), tower=FlatRows)
    wanted = [one.output_ids.tolist() for one in answers(local, plain, asked)]
    shelf = Shelf(FlatRows)
    executor = PlainExecutor(config, TEXT, WEIGHTS, rounded=True, shelf=shelf)
    prompts, seen = executor.runner._prompts, []
    fixed = prompts._fixed_overlay
    prompts._fixed_overlay = lambda *given: seen.append(given) or fixed(*given)  # type: ignore
    assert [one.output_ids.tolist() for one in answers(executor, config, asked)] == wanted
    assert len(seen) > 1


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_kernels_see_among_layers_that_keep_states() -> None:
    """Rope with three coordinates on a part of each head, beside a layer with Gated DeltaNet;
    prompts in chunks that cut an image, and decode steps behind images."""
    first, second = TEXT.layers
    rope = Rope(100.0, 8, axes=(0, 1, 2, 0))
    attends = replace(second, attention=replace(second.attention, rope=rope))
    keeps = replace(first, attention=attends.attention, state=STATES[0])
    spec = replace(TEXT, layers=(keeps, attends))
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    weights = {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    config = replace(config, max_num_batched_tokens=10)
    some = [r for r in map(seeing, requests(PLAIN)) if r.delta and len(r.media) == 1][:2]
    shown = [tuple(replace(span, two_way=False) for span in r.media) for r in some]
    asked = [replace(r, media=m, max_tokens=4) for r, m in zip(some, shown, strict=True)]
    assert len(asked) == 2
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)

    def tokens(executor: Any, config: EngineConfig, asked: list[Request]) -> list[list[int]]:
        return [one.output_ids.tolist() for one in answers(executor, config, asked)]

    wanted = tokens(LocalExecutor(plain, spec, dict(weights), tower=FlatRows), plain, asked)
    unmoved = [replace(r, coordinates=None, delta=0) for r in asked]
    other = tokens(LocalExecutor(plain, spec, dict(weights), tower=FlatRows), plain, unmoved)
    assert wanted != other  # positions count
    executor = InterpretedExecutor(config, spec, dict(weights), shelf=Shelf(FlatRows))
    assert tokens(executor, config, asked) == wanted


HEARD = 10  # rows of a sound: two blocks of 4 tokens, and half of one
EQUAL = TEXT.with_attention(lambda one: replace(one, num_kv_heads=one.num_heads))
LAYERS = tuple(replace(one, cross=CrossPlan(HEARD)) for one in EQUAL.layers)
HEARING = replace(EQUAL, layers=LAYERS)
HEARING_WEIGHTS = {
    name: w * 10 if w.dim() == 2 else w
    for name, w in dummy_weights(HEARING, dtype=torch.float32, device="cpu").items()
}
SOUNDS = [MediaItem(serial, "audio", HEARD, Seed(serial)) for serial in range(1, 6)]


class Sounds:
    """A tower that makes keys and values of an item alone."""

    hidden_size = row_width = HEARING.hidden_size

    def encode(self, items: Sequence[Encode]) -> list[Tensor]:
        shape = (HEARD, HEARING.num_layers, 2, HEARING.num_heads, HEARING.head_dim)
        seeds = [int(item.arrays["seed"][0]) for item in items]
        return [torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds]


def hearing(request: Request) -> Request:
    """The request with one of the sounds, and ids that tell them apart."""
    item = SOUNDS[request.number % len(SOUNDS)]
    compared = np.concatenate([[-item.serial], request.prompt_ids[1:]]).astype(np.int32)
    return replace(request, prompt_ids=compared, with_placeholders=request.prompt_ids, heard=item)


def shelf_with_pages(num_places: int, block_size: int) -> Shelf:
    shelf = Shelf(Sounds)
    given = (HEARING, num_places, block_size, torch.float32, torch.device("cpu"))
    shelf.pages = SoundPages(*given)
    return shelf


def heard_tokens(executor: Any, config: EngineConfig, asked: list[Request], room: int) -> Any:
    made = answers(executor, config, asked, shelf_rows=room)
    return [one.output_ids.tolist() for one in made]


@pytest.mark.parametrize(("depth", "max_repeat", "num_sounds"), [(1, 1, 1), (2, 8, 3)])
def test_sounds_in_pages_are_heard_as_sounds_by_themselves(
    depth: int, max_repeat: int, num_sounds: int
) -> None:
    """In chunks, with samples and beside rows that rest; sounds come, go and come again."""
    config = small_config(depth=depth, max_repeat=max_repeat, max_num_batched_tokens=24)
    asked = [hearing(r) for r in requests(PLAIN + SPECIAL)]
    plain = replace(config, depth=1, max_repeat=1)
    room = HEARD * num_sounds
    local = LocalExecutor(plain, HEARING, dict(HEARING_WEIGHTS), tower=Sounds)
    wanted = heard_tokens(local, plain, asked, room)
    others = [replace(r, heard=SOUNDS[0]) for r in asked]
    local = LocalExecutor(plain, HEARING, dict(HEARING_WEIGHTS), tower=Sounds)
    assert wanted != heard_tokens(local, plain, others, room)  # sounds count
    shelf = shelf_with_pages(num_sounds, config.block_size)
    executor = PlainExecutor(config, HEARING, HEARING_WEIGHTS, rounded=True, shelf=shelf)
    assert heard_tokens(executor, config, asked, room) == wanted


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_kernels_hear_what_plain_torch_hears() -> None:
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    some = requests(PLAIN, count=2)  # of few tokens: the interpreter is slow
    asked = [hearing(replace(r, prompt_ids=r.prompt_ids[:3], max_tokens=3)) for r in some]
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    local = LocalExecutor(plain, HEARING, dict(HEARING_WEIGHTS), tower=Sounds)
    wanted = heard_tokens(local, plain, asked, HEARD * 3)
    shelf = shelf_with_pages(3, config.block_size)
    executor = InterpretedExecutor(config, HEARING, HEARING_WEIGHTS, shelf=shelf)
    assert heard_tokens(executor, config, asked, HEARD * 3) == wanted
