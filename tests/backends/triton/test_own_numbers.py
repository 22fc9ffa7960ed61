"""Numbers that adapters have of their own on the device: what the loops over slots make of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.backends.adapter_ops import AdapterRoom, Added, OwnNumbers
from quire.backends.adapters import LoopedAdapters
from quire.backends.experts import EveryExpert
from quire.backends.linear import Gate, GatedProduct
from quire.backends.plain import PlainLinear
from quire.backends.triton.adapters import StackedAdapters
from quire.backends.triton.elementwise import gate_mul
from quire.backends.triton.kernels import TritonKernels
from quire.layers.adapted import AdapterSites
from quire.layers.linear import Linear
from quire.layers.norm import LayerNorm, RMSNorm
from tests.backends.reference import ReferenceKernels, ReferenceLinear
from tests.backends.triton.checks import Place, assert_close
from tests.backends.triton.places import DEVICE, small_places

SLOTS, LINES = 4, 23
CHOSEN = (np.arange(LINES) * 7 % (SLOTS + 1) - 1).astype(np.int32)


def some(place: Place, *size: int) -> Tensor:
    return (torch.randn(*size) / 4).to(place.device, place.dtype)


def both(place: Place) -> tuple[StackedAdapters, LoopedAdapters]:
    room = AdapterRoom(SLOTS, 8, place.dtype, torch.device(place.device))
    return StackedAdapters(room), LoopedAdapters(ReferenceLinear, lambda count: count)


def compare(place: Place, products: Any, x: Tensor, y: Tensor, changed: set[int]) -> Tensor:
    """Both make the same of these lines, and change those of these slots alone."""
    made = []
    for kernels, product in products:
        where = y.device if isinstance(kernels, StackedAdapters) else torch.device("cpu")
        lines = kernels.lines(CHOSEN)
        made.append(product.add(x.to(where).clone(), y.to(where).clone(), lines))
    assert_close(made[0], made[1].to(y.device))
    differs = [not torch.equal(a, b) for a, b in zip(made[0], y, strict=True)]
    assert differs == [slot in changed for slot in CHOSEN.tolist()]
    return made[0]


def host(own: OwnNumbers) -> OwnNumbers:
    parts = (own.rows, own.weight, own.offset)
    return OwnNumbers(*(None if one is None else one.cpu() for one in parts))


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("biased", [False, True], ids=("plain", "biased"))
def test_rows_of_a_product_and_offsets(place: Place, biased: bool) -> None:
    torch.manual_seed(1)
    rows, columns = (48, 32), 64
    bias = some(place, 80) if biased else None
    products = []
    for k in both(place):
        own = bias if bias is None or isinstance(k, StackedAdapters) else bias.cpu()
        products.append((k, k.product(rows, columns, own, seldom=True)))
    whole = OwnNumbers(torch.arange(80), some(place, 80, columns))
    few = OwnNumbers(torch.tensor([70, 3, 41]), some(place, 3, columns), torch.randn(80))
    shifted = OwnNumbers(offset=torch.randn(80))
    a, b = some(place, 8, columns), some(place, 32, 8)
    low_rank = Added(1, 48, a, b, torch.rand(32, device=place.device) + 0.5 if biased else None)

    def load(slot: int, added: list[Added], own: OwnNumbers | None) -> None:
        for kernels, product in products:
            on_host = isinstance(kernels, LoopedAdapters)
            given = [
                replace(
                    one,
                    a=one.a.cpu(),
                    b=one.b.cpu(),
                    factor=None if one.factor is None else one.factor.cpu(),
                )
                if on_host
                else one
                for one in added
            ]
            product.load(slot, given)
            if own is not None:
                product.load_own(slot, host(own))

    x, y = some(place, LINES, columns), some(place, LINES, 80)
    load(0, [low_rank], few)
    compare(place, products, x, y, {0})
    load(1, [], whole)
    load(2, [low_rank], shifted)
    compare(place, products, x, y, {0, 1, 2})
    before = products[0][1].variant
    load(2, [low_rank], None)
    load(1, [], None)  # and another takes its place, in the same memory
    load(3, [low_rank], replace(whole, weight=some(place, 80, columns)))
    assert products[0][1].variant == before
    compare(place, products, x, y, {0, 2, 3})
    for slot in range(SLOTS):
        load(slot, [], None)
    assert products[0][1].variant == 0
    compare(place, products, x, y, set())


@pytest.mark.parametrize("place", small_places())
def test_a_product_whose_rows_are_an_adapters_own_opens_its_gate_behind_them(place: Place) -> None:
    torch.manual_seed(2)
    ours, columns, inner = both(place)[0], 32, 48
    base = PlainLinear(some(place, 2 * inner, columns), None)
    product = ours.product((inner, inner), columns, None, seldom=False, base=base)
    opened = partial(gate_mul, activation="silu")
    gate = Gate("silu", opened, lambda one: GatedProduct(one, opened))
    x, lines = some(place, LINES, columns), ours.lines(CHOSEN)
    assert lines is not None
    product.load(1, [Added(0, 0, some(place, 4, columns), some(place, inner, 4))])
    product.load_own(1, OwnNumbers(torch.arange(inner), some(place, inner, columns).cpu()))
    made = product.multiply_gated(base, gate, x, lines)
    assert torch.equal(made, gate.opened(product.add(x, base(x), lines)))
    assert not torch.equal(made, gate.opened(base(x)))


@pytest.mark.parametrize("place", small_places())
def test_rows_of_an_embedding(place: Place) -> None:
    torch.manual_seed(3)
    products = [(k, k.embedding(50, 32)) for k in both(place)]
    for slot, rows in ((0, torch.tensor([7, 0, 3])), (2, torch.arange(50))):
        own = OwnNumbers(rows, some(place, len(rows), 32).cpu())
        for _, product in products:
            product.load(slot, [])
            product.load_own(slot, own)
    ids = torch.full((LINES,), 3, device=place.device)
    compare(place, products, ids, some(place, LINES, 32), {0, 2})
    compare(place, products, ids + 9, some(place, LINES, 32), {2})  # slot 0 has no such token


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("kind", ["rms", "layer", "heads"])
def test_norms(place: Place, kind: str) -> None:
    torch.manual_seed(4)
    weight, shape = some(place, 32) + 1, (LINES, 3, 32) if kind == "heads" else (LINES, 32)
    products: list[Any] = []
    for kernels in both(place):
        on_host = isinstance(kernels, LoopedAdapters)
        mine = weight.cpu() if on_host else weight
        ops = cast(Any, ReferenceKernels if on_host else TritonKernels)(None)
        norm: Any = RMSNorm(ops, mine, 1e-5)
        if kind == "layer":
            norm = LayerNorm(ops, mine.float(), mine.float(), 1e-5)
        products.append((kernels, kernels.norm(norm.with_weight, norm.weight)))
    for slot, offset in ((1, None), (3, torch.randn(32))):
        own = OwnNumbers(None, torch.randn(32), offset)
        for _, product in products:
            product.load(slot, [])
            product.load_own(slot, own)
    torch.manual_seed(5)
    compare(place, products, some(place, *shape), some(place, *shape), {1, 3})


COUNT, HIDDEN, WIDTH, PER_TOKEN = 5, 32, 48, 2  # of experts
ROWS: dict[str, tuple[int, ...]] = {}
COLUMNS: dict[str, int] = {}
for expert in range(COUNT):
    ROWS |= {f"e.{expert}.gate_up": (WIDTH, WIDTH), f"e.{expert}.down": (HIDDEN,)}
    COLUMNS |= {f"e.{expert}.gate_up": HIDDEN, f"e.{expert}.down": WIDTH}


def for_experts(place: Place, *experts: int, dora: bool = False) -> dict[str, list[Added]]:
    """Of gate or up of these, and of down."""
    added = {}
    for i in experts:
        for site, part in ((f"e.{i}.gate_up", i % 2), (f"e.{i}.down", 0)):
            size = ROWS[site][part]
            factor = torch.rand(size, device=place.device) + 0.5 if dora else None
            a, b = some(place, 4, COLUMNS[site]), some(place, size, 4)
            added[site] = [Added(part, part * size, a, b, factor)]
    return added


# Enough for the largest tile; interpreted, they take seconds in each type, and few differ by it.
NUM_MANY = 125
FEW, MANY = small_places(), small_places() if DEVICE.type == "cuda" else small_places()[:1]


@pytest.mark.parametrize(
    ("place", "biased", "num_lines"),
    [
        *(pytest.param(*one.values, False, LINES, id=f"few lines-{one.id}") for one in FEW),
        *(pytest.param(*one.values, True, NUM_MANY, id=f"many, biased-{one.id}") for one in MANY),
    ],
)
def test_experts(place: Place, biased: bool, num_lines: int) -> None:
    """Beside every expert over every token, with slots for each product."""
    torch.manual_seed(6)
    gate, kernels = partial(gate_mul, activation="silu"), cast(Any, TritonKernels)(None)

    def linear(rows: int, columns: int) -> Linear:
        return Linear(kernels, some(place, rows, columns), some(place, rows) if biased else None)

    pairs = [(linear(2 * WIDTH, HIDDEN), linear(HIDDEN, WIDTH)) for _ in range(COUNT)]
    ups, downs = ([pair[side].multiply for pair in pairs] for side in (0, 1))
    ops = kernels.make_experts(gate, ups, downs), EveryExpert(gate, ups, downs)
    sites = [AdapterSites(both(place)[0], ROWS, COLUMNS, seldom=ROWS) for _ in ops]
    adapted = [one.experts("e", op, pairs) for one, op in zip(sites, ops, strict=True)]
    chosen = torch.rand(num_lines, COUNT, device=place.device).topk(PER_TOKEN).indices
    scores = torch.rand(num_lines, PER_TOKEN, device=place.device)
    given = some(place, num_lines, HIDDEN), chosen, scores
    slots = (np.arange(num_lines) * 7 % (SLOTS + 1) - 1).astype(np.int32)
    plain = ops[0](*given)

    def check(loaded: dict[int, dict[str, list[Added]]], changed: set[int]) -> None:
        for one in sites:
            for slot, added in loaded.items():
                one.load(slot, added)
            one.use(one.kernels.lines(slots))
        found = [op(*given) for op in adapted]
        assert_close(found[0], found[1])
        differs, mine = (found[0] != plain).any(1).cpu().numpy(), np.isin(slots, list(changed))
        assert not differs[~mine].any()
        assert not changed or differs[mine].mean() > 0.5

    check({1: for_experts(place, *range(COUNT))}, {1})
    check({3: for_experts(place, 0, 2, 4, dora=not biased)}, {1, 3})  # one more place
    check({1: {}, 0: for_experts(place, 1, 3, 0)}, {0, 3})  # in the place that was left
    check({slot: {} for slot in range(SLOTS)}, set())
    if biased:  # no family has both
        with pytest.raises(LookupError, match="DoRA of experts with biases"):
            sites[0].load(0, for_experts(place, 0, dora=True))
