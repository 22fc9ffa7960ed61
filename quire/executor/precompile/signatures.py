"""The variants (types and constants) of all kernels in the steps of a model, without torch.

A process without torch compiles them while the engine's process imports it (worker.py). Constants
come from the code that launches the kernels. Types of arguments are written here; a test compares
them with kernel_calls.py. A wrong variant only costs time, as the right one is compiled later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from quire.backends.ops import HeadShape
from quire.backends.triton import (
    blocks,
    decode,
    elementwise,
    heads,
    prefill,
    sample,
    steps,
)
from quire.backends.triton.decode_kernels import attend_items, merge_parts
from quire.backends.triton.draw_kernels import TILE, draw, pick
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.packed_kernels import attend_packed
from quire.backends.triton.prefill_kernels import attend_tiles, make_tiles
from quire.backends.triton.prefix_kernels import attend_prefixes
from quire.backends.triton.small_batch import embed_constants, products_of, thin_tile
from quire.backends.triton.small_batch_kernels import embed_rows, multiply
from quire.backends.triton.split_kv_kernels import make_items
from quire.backends.triton.tiles import (
    MANY_ROWS,
    attend_constants,
    decode_tile,
    many_queries_tile,
    prompt_tile,
    steady_tiles,
)
from quire.backends.triton.truncate_kernels import find_limits
from quire.config import EngineConfig
from quire.executor.precompile.expert_variants import expert_variants
from quire.executor.precompile.steady_variants import SteadyAttention
from quire.executor.precompile.variants import (
    A_FRACTION,
    F32,
    F64,
    I32,
    I64,
    SOME,
    U8,
    ElementType,
    Pointer,
    Variant,
)
from quire.layer_plan import NormPlan, mlps_of
from quire.spec import ModelSpec
from quire.steps.row_schema import NUM_COLUMNS

if TYPE_CHECKING:
    import torch

ROWS = 16  # of the smallest step; tiles depend on it
PREFIX_QUERIES = 64  # default queries of a tile


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a model on a GPU of a `capability`; `shared_memory`: bytes that one thread block
    may use."""

    config: EngineConfig
    spec: ModelSpec
    shared_memory: int
    capability: tuple[int, int]

    @property
    def dtype(self) -> torch.dtype:
        return cast("torch.dtype", ElementType(self.config.dtype))

    @property
    def shape(self) -> HeadShape:
        spec, config = self.spec, self.config
        fp8_kv = config.kv_cache_dtype == "fp8"
        attention = spec.layers[0].attention
        return HeadShape.of(attention, config.block_size, self.dtype, fp8_kv=fp8_kv)

    @property
    def by_heads(self) -> list[Steps]:
        """The steps of each kind of heads among the layers."""
        return [replace(self, spec=spec) for spec in self.spec.by_heads()]

    @property
    def normed_by(self) -> Pointer | None:
        """The weights by which the kernel that rotates heads norms them; None: it does not."""
        norm = self.spec.layers[0].attention.head_norm
        return None if norm is None else self._weight_of(norm)

    def _weight_of(self, norm: NormPlan) -> Pointer:
        return F32 if norm.is_wide else self._own()

    def first(self) -> list[Variant]:
        """Variants for the first steps, the slowest to compile first."""
        by_heads = self.by_heads
        made = [
            *(variant for one in by_heads for variant in one._attention()),
            *self._small_batch(),
            *self._sampling(truncated=False),
            *expert_variants(self.spec, self.dtype, self._own()),
            *(one._heads() for one in by_heads),
            *self._ends_of_a_step(),
            *self._elementwise(),
            *(one._tiles() for one in by_heads),
        ]
        return _different(made)

    def later(self) -> list[Variant]:
        """Variants that only some plans need: truncation, shared prefixes, many rows."""
        own, vocab = self._own(), self.spec.vocab_size
        made = [*self._sampling(truncated=True), self._limits(own, vocab, self.dtype)]
        made += (variant for one in self.by_heads for variant in one._later_attention())
        first = self.first()
        return [one for one in _different(made) if one not in first]

    def _attention(self) -> list[Variant]:
        if self.config.batch_invariant:
            return SteadyAttention(self.shape, self._own()).first(self._windows())
        prompts = map(self._prompts, self._windows())
        return [*prompts, *self._decode(ROWS)]

    def _later_attention(self) -> list[Variant]:
        if self.config.batch_invariant:
            return SteadyAttention(self.shape, self._own()).later()
        made = [*self._decode(ROWS, shared=True), *map(self._prefixes, self._windows())]
        if self.config.max_num_seqs >= MANY_ROWS:
            made += [*self._decode(MANY_ROWS, shared=True), *self._decode(MANY_ROWS)]
        given = (*(F32, F32, I32, I32, I32), self._own(), SOME)
        return [*made, Variant(merge_parts, given, decode.merge_constants(self.shape))]

    def features(self) -> list[Variant]:
        """Variants that only rows with edits or logprobs need."""
        from quire.backends.triton import edit

        made = [self._scores(), *self._edits(edit.scratch_width(self.spec.vocab_size))]
        made += self._automata()
        known = [*self.first(), *self.later()]
        return [one for one in made if one not in known]

    def _windows(self) -> list[bool]:
        """Whether layers have a window: [False], [True] or both."""
        return sorted({one is not None for one in self.spec.windows})

    def _own(self) -> Pointer:
        return Pointer(self.config.dtype)

    def _kept(self) -> Pointer:
        """A pointer to keys or values."""
        return Pointer("float8_e4m3fn") if self.shape.fp8_kv else self._own()

    def _prompts(self, has_window: bool) -> Variant:
        own, kept, shape = self._own(), self._kept(), self.shape
        tile, sinks = prompt_tile(shape), F32 if shape.sinks else own
        given = (own, kept, kept, own, I64, I64, I32, I32, sinks, SOME, self._q_width())
        return Variant(
            attend_tiles,
            (*given, A_FRACTION, SOME),
            {"HAS_WINDOW": has_window, "SINKS": shape.sinks, **attend_constants(shape, tile)},
        )

    def _tiles(self) -> Variant:
        shape, steady_bits = self.shape, self.config.batch_invariant
        tile = steady_tiles(shape)[1] if steady_bits else prompt_tile(shape)
        return Variant(make_tiles, (I64, I32, SOME, SOME), prefill.tiles_constants(shape, tile))

    def _q_width(self) -> int:
        return self.spec.num_heads * self.spec.head_dim

    def _prefixes(self, has_window: bool) -> Variant:
        own, kept, shape = self._own(), self._kept(), self.shape
        tile = many_queries_tile(shape, PREFIX_QUERIES)
        return Variant(
            attend_prefixes,
            (own, kept, kept, *[I32] * 4, F32, F32, SOME, self._q_width(), A_FRACTION, SOME),
            {"HAS_WINDOW": has_window, **attend_constants(shape, tile)},
        )

    def _decode(self, num_rows: int, *, shared: bool = False) -> Iterator[Variant]:
        own, kept, shape = self._own(), self._kept(), self.shape
        tile = decode_tile(shape, num_rows, shared=shared)
        sinks = F32 if shape.sinks else own  # without sinks, any pointer
        given = (own, kept, kept, I32, I32, I32, F32, F32, I32, own, sinks, SOME, self._q_width())
        yield Variant(
            attend_items,
            (*given, A_FRACTION),
            {"MERGES": not shared, "SINKS": shape.sinks, **decode.own_constants(shape, tile)},
        )
        max_rows = max(ROWS, self.config.max_num_seqs)
        constants = decode.items_constants(tile, max_rows)
        yield Variant(
            make_items,
            (*[I32] * 5, *[SOME] * 5),
            {"HAS_STARTS": shared, "HAS_ROWS": True, "LONG": decode.LONG, **constants},
        )

    def _limits(self, own: Pointer, stride: int, dtype: torch.dtype) -> Variant:
        given = (own, I32, F32, I32, F32, F64, F32, I32, F32, I32, I32)
        constants = sample.limits_constants(dtype)
        return Variant(find_limits, (*given, stride, self.spec.vocab_size), constants)

    def _edits(self, width: int) -> Iterator[Variant]:
        """Editing lines of logits, and drawing from them; `width`: of a line of the scratch."""
        from quire.backends.triton import doubt_kernels, edit
        from quire.backends.triton import edit_kernels as edit_code

        vocab, own = self.spec.vocab_size, self._own()
        yield Variant(edit_code.leave_out, (I32, I32, SOME), edit.LIST_CONSTANTS)
        copied = (I32, own, I32, I32, I32, I32, F32, I32, I32, vocab, SOME, SOME, width, vocab)
        yield Variant(edit_code.copy_lines, copied, edit.COPY_CONSTANTS)
        edited = (I32, own, I32, I32, I32, F32, I32, I32, F32, SOME, SOME, SOME, SOME)
        yield Variant(edit_code.edit_lines, edited, edit.EDIT_CONSTANTS)
        drawn = (I64, U8)
        yield Variant(edit_code.give_back, (I32, I32, *drawn * 2, SOME), edit.LIST_CONSTANTS)
        yield Variant(edit_code.remember, (I32, *drawn, I32, I32, SOME), edit.REMEMBER_CONSTANTS)
        yield Variant(doubt_kernels.lift_limits, (I32, I32, I32, SOME, SOME), edit.LIST_CONSTANTS)
        doubted = (F32, I32, I32, I64, F32, I32, F32, F64, I64, SOME, width, vocab)
        yield Variant(doubt_kernels.rest_in_doubt, doubted, edit.DOUBT_CONSTANTS)
        yield self._limits(F32, width, cast("torch.dtype", ElementType("float32")))
        yield self._draw(F32, width, truncated=True)
        yield self._draw(F32, width, truncated=False)

    def _automata(self) -> Iterator[Variant]:
        """Following grammars on the device."""
        from quire.backends.triton import automata
        from quire.backends.triton import automata_kernels as code

        vocab = self.spec.vocab_size
        made = (I32, I32, I32, U8, I32, I32, SOME, SOME, SOME, SOME, vocab)
        yield Variant(code.make_lines, made, automata.LINES_CONSTANTS)
        walked = (I32, I32, I64, U8, I32, I64, I32, I32, I32, U8, SOME, SOME, SOME, SOME)
        yield Variant(code.walk, walked, automata.WALK_CONSTANTS)

    def _scores(self) -> Variant:
        from quire.backends.triton.score_kernels import score_drawn

        vocab, as_logits = self.spec.vocab_size, self.config.logprobs_mode.endswith("_logits")
        given = (self._own(), I32, I64, U8, I32, I32, I32, F32, I32, I32, vocab, vocab)
        constants = {"AS_LOGITS": as_logits, **sample.limits_constants(self.dtype)}
        return Variant(score_drawn, (*given, SOME, SOME), constants)

    def _sampling(self, *, truncated: bool) -> Iterator[Variant]:
        vocab = self.spec.vocab_size
        yield self._draw(self._own(), vocab, truncated=truncated)
        block = power_of_two(-(-vocab // TILE.value))
        given = (I32, F32, I32, I32, I64, U8, SOME, SOME)
        yield Variant(pick, given, {"BLOCK": block, "num_warps": 1})

    def _draw(self, own: Pointer, stride: int, *, truncated: bool) -> Variant:
        given = (own, I32, I32, F32, I64, I32, F32, I32, F32, I32, I32)
        constants = {"TRUNCATED": truncated, "num_warps": 8}
        return Variant(draw, (*given, stride, self.spec.vocab_size, SOME), constants)

    def _small_batch(self) -> Iterator[Variant]:
        if self.config.batch_invariant:
            return
        own, products = self._own(), products_of(self.spec, self.dtype)
        for product in products:
            if product.is_tiled(self.capability):
                continue
            tile = thin_tile(product, self.shared_memory)
            given = (own, own, own, own, F32, own, own, F32, SOME, SOME, product.inner, A_FRACTION)
            yield Variant(multiply, given, product.constants(tile))
        if products:
            if not self.shape.fp8_kv:
                yield self._packed()
            width = self.spec.hidden_size
            lines = (I64, own, own, own, own, F32, width)
            yield Variant(embed_rows, lines, embed_constants(width))

    def _packed(self) -> Variant:
        own, shape = self._own(), self.shape
        by = self.normed_by or own
        return Variant(
            attend_packed,
            (
                *(own, F32, F32, I64, by, by, own, own, I32, I32, I32, F32, F32, I32, own),
                *(SOME, A_FRACTION, A_FRACTION),
            ),
            {
                "NORMED": self.normed_by is not None,
                **decode.packed_constants(shape, decode_tile(shape, ROWS)),
            },
        )

    def _heads(self) -> Variant:
        own, kept, spec = self._own(), self._kept(), self.spec
        stride = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        by = self.normed_by or own
        return Variant(
            heads._rope_store,
            (own, own, F32, F32, I64, own, kept, kept, by, by, stride, stride, SOME, A_FRACTION),
            {"NORMED": self.normed_by is not None, **heads.store_constants(self.shape)},
        )

    def _elementwise(self) -> Iterator[Variant]:
        own, width, norm = self._own(), self.spec.hidden_size, self.spec.norm
        layer, by = norm.kind == "layer", self._weight_of(norm)
        given = (own, own, by, by, own, width, width, A_FRACTION)
        for adds in (True, False):
            kind = elementwise.norm_constants(width, layer=layer, adds=adds, bias=norm.bias)
            yield Variant(elementwise._norm, given, kind)
        for mlp in dict.fromkeys(mlp for layer in self.spec.layers for mlp in mlps_of(layer)):
            if mlp.activation == "xielu":  # which has no kernel
                continue
            by_gate = elementwise.gate_constants(mlp.activation, gated=mlp.gated)
            stride = (1 + mlp.gated) * mlp.width
            yield Variant(elementwise._activate, (own, own, stride, mlp.width), by_gate)

    def _ends_of_a_step(self) -> Iterator[Variant]:
        spec, size = self.spec, self.config.block_size
        constants = {"WIDTH": steps.PLACES_AT_ONCE, "num_warps": 4}
        yield Variant(
            steps._feed,
            (I64, I32, I32, I64, I64, I64, I32, I32, I32, SOME, SOME, SOME, SOME, SOME),
            {"SLOTS": size, **constants},
        )
        yield Variant(
            steps._accept,
            (I64, I32, I64, U8, I32, I32, SOME, SOME, SOME),
            {"COLUMNS": int(NUM_COLUMNS), **constants},
        )
        if not self.shape.fp8_kv:
            block = spec.place_numbers * size
            yield Variant(
                blocks._copy_blocks,
                (self._own(), I32, SOME, block),
                {"BLOCK": blocks.AT_ONCE, "num_warps": 4},
            )


def _different(variants: list[Variant]) -> list[Variant]:
    return [one for at, one in enumerate(variants) if one not in variants[:at]]
