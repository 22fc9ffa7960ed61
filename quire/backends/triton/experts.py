"""The chosen experts of all tokens, by one product over all experts at once.

A pair is a token and one of its experts. Pairs are counted and sorted by expert, each expert's
pairs beginning at a tile of rows; then one launch for each of the two products multiplies every
tile with the weights of its expert. Nothing is read from the device, and the number of programs
depends only on the number of pairs: a captured pass serves every choice of experts, and tiles that
are not filled end at once. The results of a token's experts are added in the order in which it
chose them, so nothing depends on which pair was counted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import triton

from quire.backends.triton.experts_kernels import (
    add_up,
    arrange_pairs,
    choose_experts,
    count_pairs,
    multiply_experts,
    order_pairs,
)
from quire.backends.triton.jit import power_of_two, precision, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from quire.backends.ops import ExpertsOp, RowOp
    from quire.layer_plan import ExpertsPlan

# Of an expert this wide, on average so many pairs: from there on the library is a sixth faster
# (4096 x 14336, measured), where of narrow experts it takes twice as long.
WIDE, MANY_PAIRS = 4096, 512
PAIRS_AT_ONCE = 128
FEW_PAIRS = 4096  # most pairs that one program sorts
TOKENS_AT_ONCE = 4
COLUMNS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` of one expert's pairs by `columns` of the product, `depth` of the sum at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# By how many pairs an expert has on average, at most. Few pairs cost the reading of weights, so
# their tiles are wide enough that an expert's weights are read once (benchmarks/gpu_experts.py).
_TILES = (
    (8, Tile(16, 64, 128, 4, 4)),
    (24, Tile(32, 128, 128, 4, 3)),
    (48, Tile(64, 128, 64, 4, 4)),
)
_MANY = Tile(128, 256, 64, 8, 3)


def tile_for(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tile:
    """The tile for so many pairs; half as deep for float32, to use the same memory."""
    average = num_pairs / num_experts
    tile = next((tile for most, tile in _TILES if average <= most), _MANY)
    if dtype.itemsize == 4:
        return Tile(tile.rows, tile.columns, tile.depth // 2, tile.warps, tile.stages)
    return tile


def all_tiles(plan: ExpertsPlan, dtype: torch.dtype) -> tuple[Tile, ...]:
    """The tiles for passes of any number of tokens, the smallest first."""
    most = (*(most for most, _ in _TILES), 1 << 20)
    return tuple(tile_for(one * plan.count, plan.count, dtype) for one in most)


class ExpertProduct(Protocol):
    """One product of every expert: weights [E, N, K], and biases [E, N] if they have some."""

    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def biases(self) -> Tensor | None: ...

    def tile_for(self, num_pairs: int) -> Tile:
        """One that the other product of a layer can use, too, if its weights are plain."""

    def multiply(self, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int) -> Tensor:
        """For each pair, row pair // per_row of x times its expert's weights; the pairs were
        sorted for this tile."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """An ExpertProduct with plain weights."""

    weights: Tensor
    biases: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, outer, inner = self.weights.shape
        return experts, outer, inner

    @property
    def grouped(self) -> bool:
        """Whether the library's grouped products support them: bfloat16, lines of 16 bytes."""
        lines = all(size % 8 == 0 for size in self.weights.shape[1:])
        return self.biases is None and lines and str(self.weights.dtype) == "torch.bfloat16"

    def tile_for(self, num_pairs: int) -> Tile:
        return tile_for(num_pairs, len(self.weights), self.weights.dtype)

    def multiply(self, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int) -> Tensor:
        experts, outer, inner = self.shape
        out = x.new_empty(pairs.count, outer)
        grid = (pairs.num_tiles * triton.cdiv(outer, tile.columns),)
        biases = self.weights if self.biases is None else self.biases
        multiply_experts[grid](
            *(x, self.weights, biases, pairs.counts, pairs.ordered, out, inner),
            **product_constants(
                *(experts, outer, inner, tile, per_row),
                has_bias=self.biases is not None,
                dtype=self.weights.dtype,
            ),
        )
        return out


def product_constants(
    experts: int,
    outer: int,
    inner: int,
    tile: Tile,
    per_row: int,
    *,
    has_bias: bool,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The constants of a product of all experts; `per_row`: pairs that read the same row."""
    return {
        "PER_ROW": per_row,
        "INNER": inner,
        "OUTER": outer,
        "EXPERTS": experts,
        "LANES": power_of_two(experts),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "EVEN": inner % tile.depth == 0,
        "HAS_BIAS": has_bias,
        "PRECISION": precision(dtype),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        **waiting(),
    }


def products_of(
    plan: ExpertsPlan, hidden: int, tile: Tile, dtype: torch.dtype
) -> tuple[tuple[int, dict[str, Any]], ...]:
    """The two products of a layer's experts: depth and constants of each."""
    one, made = plan.expert, []
    up, down = (1 + one.gated) * one.width, one.width
    for outer, inner, per_row in ((up, hidden, plan.per_token), (hidden, down, 1)):
        sizes = (plan.count, outer, inner, tile, per_row)
        made.append((inner, product_constants(*sizes, has_bias=one.bias, dtype=dtype)))
    return tuple(made)


def sum_constants(per_token: int) -> dict[str, int]:
    """The constants of adding up."""
    return {"PER_TOKEN": per_token, "BLOCK": COLUMNS_AT_ONCE, "num_warps": 4, **waiting()}


COUNT_CONSTANTS = {"BLOCK": PAIRS_AT_ONCE, "num_warps": 4}


def order_constants(experts: int, tile: Tile) -> dict[str, int]:
    """The constants of sorting pairs."""
    lanes = power_of_two(experts)
    return {"EXPERTS": experts, "LANES": lanes, "ROWS": tile.rows, **COUNT_CONSTANTS}


def arrange_constants(experts: int, tile: Tile) -> dict[str, int]:
    """The constants of sorting pairs in one program."""
    own = {"BLOCK": FEW_PAIRS, "num_warps": 16, **waiting()}
    return {**order_constants(experts, tile), **own}


def choice_constants(plan: ExpertsPlan) -> dict[str, Any]:
    """The constants of choosing experts."""
    return {
        "EXPERTS": plan.count,
        "LANES": power_of_two(plan.count),
        "PER_TOKEN": plan.per_token,
        "PLACES": power_of_two(plan.per_token),
        "ROWS": TOKENS_AT_ONCE,
        "SOFTMAX": plan.score == "softmax",
        "HAS_BIAS": plan.choice_bias,
        "RENORMALISE": plan.renormalise,
        "num_warps": 4,
        **waiting(),
    }


def compile_experts(plan: ExpertsPlan, hidden: int, tile: Tile, dtype: torch.dtype) -> None:
    """Compile the kernels of a layer's experts for this tile, without computing anything."""
    import torch

    own, whole, pairs, wide = dtype, torch.int32, torch.int64, torch.float32
    made = [
        choose_experts.warmup(
            *(wide, wide, pairs, wide, 2, 0.5, 0.5), grid=(1,), **choice_constants(plan)
        ),
        count_pairs.warmup(pairs, whole, whole, 2, grid=(1,), **COUNT_CONSTANTS),
        order_pairs.warmup(
            *(pairs, whole, whole, whole, 2), grid=(1,), **order_constants(plan.count, tile)
        ),
        arrange_pairs.warmup(
            *(pairs, whole, whole, 2), grid=(1,), **arrange_constants(plan.count, tile)
        ),
        add_up.warmup(*(own, wide, own, hidden), grid=(1,), **sum_constants(plan.per_token)),
    ]
    for inner, constants in products_of(plan, hidden, tile, dtype):
        given = (own, own, own, whole, whole, own, inner)
        made.append(multiply_experts.warmup(*given, grid=(1,), **constants))
    for compiled in made:
        getattr(compiled, "run", None)  # asked for, it is loaded now and not in the first step


class FusedExperts:
    """x [T, H], chosen int64 [T, k], scores float32 [T, k] -> [T, H]."""

    def __init__(
        self,
        gate: RowOp,
        ups: ExpertProduct,
        downs: ExpertProduct,
        *,
        tile: Tile | None = None,
        for_many: ExpertsOp | None = None,
    ) -> None:
        """ups [E, 2 I, H], what `gate` takes, and downs [E, H, I]. `for_many` takes over where an
        expert has MANY_PAIRS on average."""
        self._gate, self._ups, self._downs, self._tile = gate, ups, downs, tile
        self._for_many = for_many
        self._tiled = downs if isinstance(ups, ExpertWeights) else ups

    @property
    def count(self) -> int:
        return self._ups.shape[0]

    @property
    def has_biases(self) -> bool:
        return self._ups.biases is not None or self._downs.biases is not None

    @property
    def width(self) -> int:
        """The width of activation(gate) * up."""
        return self._downs.shape[2]

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        if self._for_many is not None and chosen.numel() >= MANY_PAIRS * self.count:
            return self._for_many(x, chosen, scores)
        return self.changed(x, chosen, scores, _as_it_is, _as_it_is)

    def changed(
        self,
        x: Tensor,
        chosen: Tensor,
        scores: Tensor,
        after_up: Callable[[Tensor, Tensor], Tensor],
        after_down: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """The same where something becomes of what a product made: of its x, [T, H] or by pair,
        and its y [pairs, N]."""
        tile = self._tile or self._tiled.tile_for(chosen.numel())
        pairs, x = Pairs(chosen, self.count, tile), x.contiguous()
        made = self._ups.multiply(x, pairs, tile, per_row=chosen.shape[1])
        opened = self._gate(after_up(x, made))
        made = self._downs.multiply(opened, pairs, tile, per_row=1)
        return _added_up(after_down(opened, made), scores)


class Pairs:
    """The pairs of a pass, sorted by expert: `counts` of each expert, and `ordered`, its pairs from
    a tile's first row on."""

    def __init__(self, chosen: Tensor, experts: int, tile: Tile) -> None:
        import torch

        self.count = chosen.numel()
        # An expert whose last tile is not full needs one more.
        self.num_tiles = self.count // tile.rows + min(experts, self.count)
        chosen = chosen.contiguous()
        self.counts = torch.empty(experts, dtype=torch.int32, device=chosen.device)
        self.ordered = self.counts.new_empty(self.num_tiles * tile.rows)
        if self.count <= FEW_PAIRS:
            arrange_pairs[(1,)](
                *(chosen, self.counts, self.ordered, self.count),
                **arrange_constants(experts, tile),
            )
            return
        ranks = self.counts.zero_().new_empty(self.count)
        grid = (triton.cdiv(self.count, PAIRS_AT_ONCE),)
        count_pairs[grid](chosen, self.counts, ranks, self.count, **COUNT_CONSTANTS)
        order_pairs[grid](
            *(chosen, self.counts, ranks, self.ordered, self.count),
            **order_constants(experts, tile),
        )


def _as_it_is(x: Tensor, y: Tensor) -> Tensor:
    return y


def _added_up(made: Tensor, scores: Tensor) -> Tensor:
    tokens, per_token = scores.shape
    width = made.shape[1]
    out = made.new_empty(tokens, width)
    grid = (tokens, triton.cdiv(width, COLUMNS_AT_ONCE))
    add_up[grid](made, scores.contiguous(), out, width, **sum_constants(per_token))
    return out
