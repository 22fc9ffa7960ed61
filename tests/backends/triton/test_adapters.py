"""LoRA adapters on the device: what the loops over slots make of the same lines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.backends.adapter_ops import AdapterRoom, Added
from quire.backends.adapters import LoopedAdapters
from quire.backends.linear import Gate, GatedProduct
from quire.backends.plain import PlainLinear
from quire.backends.triton import adapters
from quire.backends.triton.adapter_lines import UNUSED, Tiles, most_tiles, tiled
from quire.backends.triton.adapter_stacks import column_blocks
from quire.backends.triton.adapters import StackedAdapters, StackedProduct
from quire.backends.triton.elementwise import gate_mul
from quire.layer_plan import Activation
from tests.backends.reference import ReferenceLinear
from tests.backends.triton.checks import Place, assert_close
from tests.backends.triton.places import small_places

SLOTS = 3


def some(place: Place, *size: int) -> Tensor:
    return (torch.randn(*size) / 4).to(place.device, place.dtype)


def both(place: Place) -> tuple[StackedAdapters, LoopedAdapters]:
    room = AdapterRoom(SLOTS, 8, place.dtype, torch.device(place.device))
    return StackedAdapters(room), LoopedAdapters(ReferenceLinear, lambda count: count)


def at_home(one: Added, kernels: Any) -> Added:
    """Where these products keep it: the loops' on the host."""
    if isinstance(kernels, StackedAdapters):
        return one
    factor = None if one.factor is None else one.factor.cpu()
    return replace(one, a=one.a.cpu(), b=one.b.cpu(), factor=factor)


def check(place: Place, products: Any, x: Tensor, y: Tensor, slots: list[int]) -> None:
    """Both make the same of these lines, and lines without a slot stay as they are."""
    chosen = np.array(slots, np.int32)
    made = []
    for kernels, product in products:
        where = y.device if isinstance(kernels, StackedAdapters) else torch.device("cpu")
        given, out, lines = x.to(where).clone(), y.to(where).clone(), kernels.lines(chosen)
        made.append(product.add(given, out, lines))
    assert_close(made[0], made[1].to(y.device))
    alone = torch.from_numpy(chosen < 0).to(y.device)
    assert torch.equal(made[0][alone], y[alone])
    changed = torch.from_numpy((chosen >= 0) & (chosen != 2)).to(y.device)
    assert not torch.equal(made[0][changed], y[changed])


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("dora", [False, True], ids=("lora", "dora"))
def test_products_of_three_parts(place: Place, dora: bool) -> None:
    torch.manual_seed(1)
    rows, columns = (160, 32, 40), 80
    bias = some(place, sum(rows)) if dora else None
    products: list[Any] = []
    for k in both(place):
        own = bias if bias is None or isinstance(k, StackedAdapters) else bias.cpu()
        products.append((k, k.product(rows, columns, own, seldom=False)))

    def added(part: int, rank: int) -> Added:
        factor = torch.rand(rows[part], device=place.device) + 0.5 if dora else None
        sizes = some(place, rank, columns), some(place, rows[part], rank)
        return Added(part, sum(rows[:part]), *sizes, factor)

    for slot, parts in ((0, (0, 1, 2)), (1, (1,))):  # 2 stays empty
        loaded = [added(part, 4 + 2 * slot) for part in parts]
        for kernels, product in products:
            product.load(slot, [at_home(one, kernels) for one in loaded])
    x, y = some(place, 37, columns), some(place, 37, sum(rows))
    check(place, products, x, y, [0, -1, 1, 2, 0, 0, -1] * 5 + [1, 1])
    check(place, products, x[:1], y[:1], [1])
    again = [added(2, 8)]
    for kernels, product in products:  # what was there before is gone
        product.load(0, [at_home(one, kernels) for one in again])
    check(place, products, x[:20], y[:20], [0] * 20)
    assert products[0][1].variant == (2 if dora else 1)
    for slot in (0, 1):
        for _, product in products:
            product.load(slot, ())
    lines = products[0][0].lines(np.zeros(20, np.int32))
    assert lines is not None
    empty = products[0][1]
    made = empty.add(x[:20], y[:20].clone(), lines)
    assert torch.equal(made, y[:20])
    assert products[0][1].variant == 0


@pytest.mark.parametrize("place", small_places())
def test_embeddings_and_long_sums(place: Place) -> None:
    torch.manual_seed(2)
    tables = [(k, k.embedding(50, 48)) for k in both(place)]
    table = Added(0, 0, some(place, 5, 50), some(place, 48, 5))
    wide = [(k, k.product((48,), 1100, None, seldom=True)) for k in both(place)]
    long = Added(0, 0, some(place, 8, 1100), some(place, 48, 8))
    for added, products in ((table, tables), (long, wide)):
        for kernels, product in products:
            product.load(1, [at_home(added, kernels)])
    ids, y = torch.arange(9, device=place.device) * 5, some(place, 9, 48)
    slots = [1, -1, 1, 2, 1, 1, 1, -1, 1]
    check(place, tables, ids, y, slots)
    check(place, wide, some(place, 9, 1100), y, slots)


@pytest.mark.parametrize("count", [1, 15, 40, 1025, 3000])
def test_every_line_is_in_one_tile(count: int) -> None:
    slots = np.random.default_rng(count).integers(-1, 5, count).astype(np.int32)
    tiles = tiled(slots, 5)
    assert len(tiles) == most_tiles(count, 5)
    seen = []
    for slot, *lines in tiles.tolist():
        used = [line for line in lines if line >= 0]
        assert lines == used + [-1] * (len(lines) - len(used)) and bool(used) == (slot != UNUSED)
        assert (slots[used] == slot).all()
        seen += used
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("count", [1, 2, 16, 17, 256, 1024, 1025])
def test_tiles_suffice_for_any_slots(count: int) -> None:
    for slots in (np.arange(count) % 6 - 1, np.full(count, -1), np.minimum(np.arange(count), 4)):
        assert (tiled(slots.astype(np.int32), 5)[:, 1:] >= 0).sum() == count


@pytest.mark.parametrize(("count", "num_kinds"), [(1, 6), (40, 6), (300, 6), (500, 3), (5, 40)])
def test_the_device_puts_lines_in_tiles_by_kind(count: int, num_kinds: int) -> None:
    kinds = torch.randint(-1, num_kinds, (count,), generator=torch.Generator().manual_seed(count))
    seen = []
    for kind, *lines in Tiles.of_kinds(kinds, num_kinds).tiles.tolist():
        used = [line for line in lines if line >= 0]
        assert lines == used + [-1] * (len(lines) - len(used)) and bool(used) == (kind != UNUSED)
        assert (kinds[used] == kind).all()
        seen += used
    assert sorted(seen) == (kinds >= 0).nonzero()[:, 0].tolist()


def test_blocks_of_columns_never_reach_into_another_part() -> None:
    assert column_blocks((160, 32)) == [(0, 0, 160), (0, 128, 160), (1, 160, 192)]


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(
    ("rows", "dora"), [((160, 32, 40), True), ((128, 64), False)], ids=("dora", "aligned")
)
@pytest.mark.parametrize("behind", [False, True], ids=("apart", "behind"))
def test_products_with_adapters(
    place: Place,
    rows: tuple[int, ...],
    dora: bool,
    behind: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the product, then the loops: A apart from the weight and behind it, lines
    without a slot, slots that hold nothing, lines that are not next to each other in memory."""
    torch.manual_seed(3)
    monkeypatch.setattr(adapters, "MOST_BEHIND", 10.0 if behind else 0.0)
    columns, num_slots, num_lines = 80 if dora else 128, 5, 75
    room = AdapterRoom(num_slots, 8, place.dtype, torch.device(place.device))
    weight, bias = some(place, sum(rows), columns), some(place, sum(rows)) if dora else None
    host = None if bias is None else bias.cpu()
    base = PlainLinear(weight.clone(), bias)
    ours = StackedAdapters(room).product(rows, columns, bias, seldom=False, base=base)
    loops = LoopedAdapters(ReferenceLinear, lambda count: count)
    theirs = loops.product(rows, columns, host, seldom=False)
    for slot in range(num_slots - 1):
        part = slot % len(rows)
        factor = torch.rand(rows[part]) + 0.5 if dora else None
        b, first = some(place, rows[part], 8), sum(rows[:part])
        one = Added(part, first, some(place, 8, columns), b, factor)
        ours.load(slot, [one])
        theirs.load(slot, [replace(one, a=one.a.cpu(), b=one.b.cpu())])
    slots = np.random.default_rng(1).permutation(np.arange(num_lines) % (num_slots + 1) - 1)
    slots = slots.astype(np.int32)
    x = some(place, num_lines, 2 * columns)[:, :columns]
    lines, on_host = StackedAdapters(room).lines(slots), loops.lines(slots)
    assert lines is not None and on_host is not None
    made = ours.multiply(base, x, lines)
    wanted = theirs.multiply(ReferenceLinear(weight.cpu(), host), x.cpu().contiguous(), on_host)
    assert_close(made, wanted.to(made.device))
    plain = x.float() @ weight.float().t() + (0 if bias is None else bias.float())
    near = [bool(torch.allclose(a, b, atol=0.05)) for a, b in zip(made.float(), plain, strict=True)]
    assert near == [slot in (-1, num_slots - 1) for slot in slots]
    assert torch.equal(base.weight, weight) and base.weight.is_contiguous()
    ours.release()  # as before the first was loaded, in the same memory
    assert torch.equal(ours.multiply(base, x, lines), base(x))
    assert not cast(StackedProduct, ours).make_room().a.any()
    ours.load(0, [replace(one, factor=None)])
    assert_close(ours.multiply(base, x, lines)[slots != 0], base(x)[slots != 0])


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(
    ("activation", "parts", "behind"),
    [("silu", 2, True), ("gelu_tanh", 1, True), ("clamped_silu", 2, False), ("silu", 1, False)],
)
def test_a_gate_in_the_same_launch_changes_no_bit(
    place: Place,
    parts: int,
    behind: bool,
    activation: Activation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With DoRA and a bias, of two parts and of one, lines without a slot between the others."""
    torch.manual_seed(4)
    monkeypatch.setattr(adapters, "MOST_BEHIND", 10.0 if behind else 0.0)
    inner, columns, num_lines = 160, 64, 41
    rows = (2 * inner // parts,) * parts
    room = AdapterRoom(SLOTS, 8, place.dtype, torch.device(place.device))
    base = PlainLinear(some(place, 2 * inner, columns), some(place, 2 * inner))
    ours = StackedAdapters(room)
    product = ours.product(rows, columns, base.bias, seldom=False, base=base)
    opened = partial(gate_mul, activation=activation)
    gate = Gate(activation, opened, lambda one: GatedProduct(one, opened))
    x = some(place, num_lines, columns)
    lines = ours.lines((np.arange(num_lines) % (SLOTS + 1) - 1).astype(np.int32))
    assert lines is not None
    assert torch.equal(product.multiply_gated(base, gate, x, lines), gate.opened(base(x)))
    for slot in range(SLOTS - 1):  # the last stays empty
        count = rows[part := slot % parts]
        factor = torch.rand(count, device=place.device) + 0.5
        sizes = some(place, 8, columns), some(place, count, 8)
        product.load(slot, [Added(part, sum(rows[:part]), *sizes, factor)])
    made = product.multiply_gated(base, gate, x, lines)
    assert torch.equal(made, gate.opened(product.multiply(base, x, lines)))
    assert not torch.equal(made, gate.opened(base(x)))
