"""Kernels compiled while the weights are loaded.

Each kernel is called once on next to nothing, in a thread of its own: compiling one takes a
second or more of a core, and what was compiled before is found on disk. The arguments have the
types and constants of the model's real calls, so that nothing is left to compile later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.executor.device_rows import DeviceColumns
from quire.executor.graphs import DecodePlaces
from quire.kernels.ops import HeadShape
from quire.models.decoder import head_shape
from quire.spec import ModelSpec
from quire.step import PrefixGroup

THREADS = 12
ROWS = 16


class Warmup:
    """Begins compiling when it is made; `wait` returns when all is compiled that the first steps
    need. The rest goes on beside them."""

    def __init__(self, config: EngineConfig, spec: ModelSpec) -> None:
        # Here, because modules that import each other must not be imported by several threads.
        import quire.executor.thin_pass
        import quire.executor.triton_ops
        import quire.kernels.triton.kernels  # noqa: F401

        self._pool = ThreadPoolExecutor(THREADS, "quire-compile")
        calls = _Calls(config, spec, torch.device("cuda", torch.cuda.current_device()))
        self._running: list[Future[None]] = [self._pool.submit(_call, call) for call in calls.all()]
        for call in calls.later():
            self._pool.submit(_call, call)

    def wait(self) -> None:
        try:
            for one in self._running:
                one.result()
        finally:
            self._pool.shutdown(wait=False)


@torch.inference_mode()
def _call(call: Callable[[], object]) -> None:
    call()


class _Calls:
    """One call of every kernel, on a few rows that rest and blocks nobody uses."""

    def __init__(self, config: EngineConfig, spec: ModelSpec, device: torch.device) -> None:
        self.config, self.spec, self.device = config, spec, device
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.shape: HeadShape = head_shape(spec, config.block_size, self.dtype)
        self.windows = frozenset(spec.windows) or frozenset({None})

    def all(self) -> list[Callable[[], object]]:
        """What the first steps call, the slowest to compile first."""
        by_window = [
            call
            for window in self.windows
            for call in (partial(self.prompts, window), partial(self.decode, window, ROWS))
        ]
        return [
            *by_window,
            partial(self.sample, truncated=False),
            *self.thin(),
            self.heads,
            self.norms,
            self.ends_of_a_step,
            self.products,
        ]

    def later(self) -> list[Callable[[], object]]:
        """What only some plans call: truncation, shared prefixes, many rows."""
        from quire.kernels.triton.tiles import MANY_ROWS

        sizes = (ROWS, MANY_ROWS) if self.config.max_num_seqs >= MANY_ROWS else (ROWS,)
        decodes = [
            partial(self.decode, window, size, shared=shared)
            for window in self.windows
            for size in sizes
            for shared in (True, False)
            if shared or size > ROWS
        ]
        return [partial(self.sample, truncated=True), *decodes]

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(size, dtype=dtype or self.dtype, device=self.device)

    def cache(self) -> tuple[Tensor, Tensor]:
        shape = self.shape
        size = (1, shape.num_kv_heads, shape.block_size, shape.head_dim)
        return self.empty(*size), self.empty(*size)

    def columns(self) -> DeviceColumns:
        return DeviceColumns(ROWS, 4, vocab_size=self.spec.vocab_size, device=self.device)

    def prompts(self, window: int | None) -> None:
        from quire.kernels.triton.prefill import PrefillAttention

        shape = self.shape
        starts = torch.tensor([0, 1], device=self.device)
        lengths = torch.tensor([1], device=self.device)
        tables = self.empty(1, 4, dtype=torch.int32)
        attention = PrefillAttention(shape, starts, lengths, tables, 1, window=window)
        out = self.empty(1, shape.num_heads * shape.head_dim)
        attention.attend(self.empty(1, shape.num_heads, shape.head_dim), *self.cache(), out)

    def decode(self, window: int | None, num_places: int, *, shared: bool = False) -> None:
        from quire.executor.triton_ops import TritonOps

        columns = self.columns()
        # As many rows as the real buffers have: some constants go by it.
        max_rows = max(ROWS, self.config.max_num_seqs)
        ops = TritonOps(self.shape, columns, frozenset({window}), max_rows=max_rows)
        places = DecodePlaces.make(num_places, 1, columns.resting, self.device)
        prefixes = None
        if shared:
            ids = torch.arange(2, dtype=torch.int32).numpy()
            prefixes = ops.list_prefixes(num_places, (PrefixGroup(ids[:1], ids),), [ids])
        fed = ops.feed(places, prefixes)
        q = self.empty(num_places, self.shape.num_heads, self.shape.head_dim)
        fed.attention[window].attend(q, *self.cache())

    def thin(self) -> list[Callable[[], object]]:
        """The products of steps with few rows."""
        from quire.executor.thin_pass import products_of
        from quire.kernels.triton.thin import ThinProducts, compile_product

        def embed() -> None:
            ids = self.empty(1, dtype=torch.int64)
            ThinProducts().embed(ids, self.empty(1, self.spec.hidden_size))

        products = products_of(self.spec, self.dtype)
        compiled = [partial(compile_product, product) for product in products]
        return [*compiled, embed] if products else []

    def sample(self, *, truncated: bool) -> None:
        from quire.executor.triton_ops import TritonOps

        ops = TritonOps(self.shape, self.columns(), self.windows)
        nobody = torch.full((ROWS,), -1, dtype=torch.int32, device=self.device)
        ops.draw(self.empty(ROWS, self.spec.vocab_size), nobody, nobody, truncated=truncated)

    def heads(self) -> None:
        from quire.kernels.triton.heads import HeadNorms, norm_rope_store

        shape, width = self.shape, self.shape.head_dim
        num_all = shape.num_heads + 2 * shape.num_kv_heads
        turn = self.empty(ROWS, width // 2, dtype=torch.float32)
        slots = torch.full((ROWS,), -1, device=self.device)
        norms = HeadNorms(self.empty(width), self.empty(width), 1e-6) if self.spec.qk_norm else None
        qkv = self.empty(ROWS, num_all, width)
        norm_rope_store(qkv, turn, turn, slots, *self.cache(), shape, norms)

    def norms(self) -> None:
        from quire.kernels.triton.elementwise import add_rms_norm, rms_norm, silu_mul

        x = self.empty(ROWS, self.spec.hidden_size)
        rms_norm(x, x[0], self.spec.norm_eps)
        add_rms_norm(x, x.clone(), x[0], self.spec.norm_eps)
        silu_mul(self.empty(ROWS, 2 * self.spec.intermediate_size))

    def ends_of_a_step(self) -> None:
        from quire.executor.triton_ops import TritonOps

        columns = self.columns()
        ops = TritonOps(self.shape, columns, frozenset())
        places = DecodePlaces.make(ROWS, 1, columns.resting, self.device)
        ops.feed(places, None)
        drawn = self.empty(ROWS, dtype=torch.int64)
        ops.accept(places, drawn, drawn.bool())
        keys, values = self.cache()
        pairs = torch.full((1, 2), -1, device=self.device)
        ops.copy_blocks(torch.stack([keys, values])[None], pairs)

    def products(self) -> None:
        """Loads the library of matrix products."""
        x = self.empty(ROWS, self.spec.hidden_size)
        torch.nn.functional.linear(x, x)
