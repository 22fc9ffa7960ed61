"""Every op once: its name, its inputs and its result, for all devices.

choose.py chooses a set of kernels when a model is built, by device and options, and layers call it
without asking which it is. tests/backends/reference.py defines what each op means.

Shapes: T tokens, H hidden, D head_dim, N blocks of S slots. A layer's KV cache is two tensors, keys
and values, each [N, kv_heads, S, D]; slot = block * S + offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire.backends.linear import GatedProduct
from quire.layer_parts.state import StatePlan
from quire.layer_plan import Activation, AttentionPlan, ExpertsPlan, LayerPlan

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quire.backends.adapter_ops import AdapterKernels, AdapterRoom
    from quire.backends.linear import LinearOp

# (x [T, H], chosen int64 [T, k], scores float32 [T, k]) -> [T, H]
ExpertsOp = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
# The router's products float32 [T, E] -> chosen int64 [T, k] and scores float32 [T, k].
ChoiceOp = Callable[["Tensor"], "tuple[Tensor, Tensor]"]
RowOp = Callable[["Tensor"], "Tensor"]  # each row is computed by itself
HeadsOp = Callable[["Tensor", "Tensor"], None]  # each head by itself, into the second tensor


class PackedMatrix(Protocol):
    """A weight [N, K] that is not a plain tensor and makes its own product."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def device(self) -> torch.device: ...

    def linear(self, bias: Tensor | None) -> LinearOp:
        """x [T, K] -> x weight^T + bias [T, N]."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The attention heads of a model, and how their KV is stored in blocks."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    fp8_kv: bool = False  # KV is kept in fp8 (backends/fp8.py); only on a GPU
    own_scale: float | None = None  # of scores, where it is not 1 / sqrt(head_dim)
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: bool = False  # whether every head has one more key with value 0 (AttentionStep.attend)
    values_in_keys: int = 0  # values are the first so many numbers of keys; 0: stored apart

    @classmethod
    def of(
        cls, plan: AttentionPlan, block_size: int, dtype: torch.dtype, *, fp8_kv: bool = False
    ) -> HeadShape:
        """The heads of a layer's attention."""
        return cls(
            *(plan.num_heads, plan.num_kv_heads, plan.head_dim, block_size, dtype, fp8_kv),
            *(plan.scale, plan.softcap, plan.sinks),
            values_in_keys=0 if plan.latent is None else plan.latent.kv_rank,
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def value_dim(self) -> int:
        return self.values_in_keys or self.head_dim

    @property
    def kv_dtype(self) -> torch.dtype:
        import torch

        return torch.float8_e4m3fn if self.fp8_kv else self.dtype

    @property
    def scale(self) -> float:
        """The factor of every product of a query and a key."""
        return float(self.head_dim**-0.5) if self.own_scale is None else self.own_scale


# The fewest rows of a product on a GPU if each row must get the same bits in any batch.
STEADY_ROWS = 128


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What each token of a pass attends to: the fields of a Batch that attention needs.

    Sequence i has the tokens query_starts[i] .. query_starts[i + 1], which are the last ones of its
    context_lens[i] tokens, and its KV is in blocks tables[i]. The first `num_prefill` sequences are
    slices, the others have one token. `prefixes` are (blocks, sequences that begin with them).
    `longest_query` and `longest_context` are the most tokens and the longest context of any
    sequence, or 0 if the host does not know them.
    """

    query_starts: Tensor
    context_lens: Tensor
    tables: Tensor
    slots: Tensor
    num_prefill: int
    prefixes: tuple[tuple[Tensor, Tensor], ...] = ()
    longest_query: int = 0
    longest_context: int = 0


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of each head of q and of k: weights [D], applied as `rms_norm` does."""

    q: Tensor
    k: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class StateHeads:
    """Numbers for each matrix of a state, float32 [heads]: log_slopes and shifts make its decay; of
    a MambaPlan `skips` are factors of values that are added to what is read."""

    log_slopes: Tensor
    shifts: Tensor
    skips: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StateRule:
    """How tokens change a state, and what they read from it: the parameters between the products of
    a layer, all float32. convolution [channels, reach], its bias [channels] if it has one, and
    `heads` if there are matrices."""

    plan: StatePlan
    convolution: Tensor
    bias: Tensor | None = None
    heads: StateHeads | None = None


class StateStep(Protocol):
    """The states of one pass: planned once, used by every layer of a group that keeps states."""

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Update the states in `keys` and `values` with the tokens, one after the other, and read
        from them: x [T, channels], which is convolved (with matrices queries, keys and values) ->
        float32 [T, heads, Dv], or [T, channels] without matrices. `rates` float32, before their
        activations: of a DeltaNetPlan [T, 2 heads], rates and decays; of a MambaPlan [T, heads],
        steps; None without matrices."""


@dataclass(frozen=True, slots=True)
class RowNorm:
    """An RMSNorm as `rms_norm` applies it."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class ReadGate:
    """How what was read from a state is gated: by silu of a gate, and normed over each of `parts`
    equal parts if there is a norm, before that if `norm_first`. The norm's weight has a number for
    each column, or for each of a part."""

    norm: RowNorm | None
    parts: int = 1
    norm_first: bool = False


@dataclass(frozen=True, slots=True)
class LatentRows:
    """Queries and rows of a pass's tokens, before rotation by cos and sin [T, any]."""

    q: Tensor  # [T, heads, any]
    row: Tensor  # [T, D]
    norm: RowNorm  # of a row without its rotated end
    cos: Tensor
    sin: Tensor


class AttentionStep(Protocol):
    """The attention of one pass: planned once, used by every layer with the same window."""

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Norm the heads of qk [T, heads + kv_heads, D] if there are `norms`, rotate them by cos
        and sin [T, D / 2], write k and v [T, kv_heads, D] to the cache, return q."""

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """softmax(q k scale) v over the context of each token: [T, heads, D] -> [T, heads * D]. If
        values are the first numbers of keys, only the first value_dim numbers of each head count;
        the others may be left out. With `sinks` float32 [heads], every query of a head has one more
        key with this score and value 0.

        Every token of the pass must have been stored before."""


class PlannedAttention(AttentionStep, Protocol):
    """The planned attention of a pass, which also knows the layout of KV in blocks."""

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of n blocks of the cache as plain tensors [n, kv_heads, S, D]."""


class Kernels(Protocol):
    """All ops of one device. Attention is planned for one shape of heads; all else is the same for
    every shape."""

    def of_heads(self, shape: HeadShape) -> Kernels:
        """These kernels for heads of this shape, for models whose layers differ."""

    def declines(self, layer: LayerPlan) -> tuple[str, ...]:
        """The parts of a layer without a kernel here, in words: plain torch computes them."""

    def kv_dtype_beside_int8(self) -> torch.dtype:
        """The dtype of keys and values if weights and activations are in 8 bits."""

    def padded(self, num_tokens: int) -> int:
        """The number of rows to run for this number of tokens."""

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        """x [T, K] -> x weight^T + bias [T, N], for a weight [N, K] that may be repacked."""

    def make_experts(
        self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]
    ) -> ExpertsOp:
        """The op that computes the chosen experts (experts.py), from products made here."""

    def make_head_products(self, products: Sequence[LinearOp]) -> HeadsOp:
        """One product for each head, from products made here: [T, heads, K] into [T, heads, N]."""

    def make_choice(self, plan: ExpertsPlan, bias: Tensor | None) -> ChoiceOp:
        """The op that chooses experts and their scores; `bias` float32 [E] is added to scores for
        the choice only."""

    def make_adapters(self, room: AdapterRoom) -> AdapterKernels:
        """The kernels that add LoRA adapters to products (adapters.py)."""

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Rows of table [V, H] -> [T, H]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32. A weight
        of x's dtype is applied after rounding to it, a weight of float32 before."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x, then rms_norm(residual)."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last dimension, computed
        in float32 and rounded once; weight and bias are float32."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """residual += x, then layer_norm(residual)."""

    def gate(self, activation: Activation) -> RowOp:
        """[T, 2 I] = gate | up -> activation(gate) * up [T, I]."""

    def gated(self, activation: Activation, product: LinearOp) -> RowOp:
        """A product of gate and up that was made here, followed by `gate`."""
        return GatedProduct(product, self.gate(activation))

    def activate(self, activation: Activation) -> RowOp:
        """[T, I] -> activation of each number."""

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> PlannedAttention:
        """Plan the attention of a pass for its layers; `window`: tokens that a query sees."""

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        """Plan the states of a pass, with the block tables of their group."""

    def gate_read(self, read: Tensor, gate: Tensor, by: ReadGate) -> Tensor:
        """What was read from states, float32 [T, W], gated by `gate` [T, W], of whose dtype the
        result is. It is computed in float32; a norm behind the gate is that of `rms_norm`."""

    def rotate_latents(self, given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
        """Norm each row, rotate its end, and write it as a key into `keys` [N, 1, S, D]; rows
        without a slot are padding. Returns [T, heads, D]: room for the part of q in row space, then
        the rotated end of q."""

    def copy_blocks(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        """cache [layers, 2, N, kv_heads, S, D]: copy blocks, each pair being (from, to)."""

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        """cache [layers, 2, N, kv_heads, S, D]: fill these blocks with zeros."""
