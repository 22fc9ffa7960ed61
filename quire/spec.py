"""ModelSpec: a Hugging Face or GGUF config reduced to what quire uses. Knows nothing of torch.

Every field is a fact about the architecture. Which family means what is decided by the
functions that make a spec, never by whoever reads one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every rotary frequency divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Fast frequencies kept, slow ones divided by `factor`, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """The same idea with a ramp over the pairs, and cos and sin times `attention_factor`.

    A pair that turns `beta_fast` times or more within the original length is kept, one that
    turns `beta_slow` times or less is divided; `truncate` puts the ends of the ramp on pairs."""

    factor: float
    original_max_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorRope:
    """Frequency i divided by factor i (head_dim / 2 of them), cos and sin times a factor.

    GGUF files of Llama 3 carry their scaling this way, and longrope its short and long one."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorRope


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only model."""

    family: str  # "llama", "mistral", "qwen2", "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head's q and k before RoPE (Qwen3)
    o_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    # One entry per layer: how many tokens back a query sees (itself included), None = all.
    windows: tuple[int | None, ...] = ()
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    dtype: str = "float32"  # what the weights were stored in

    @property
    def kv_values_per_token(self) -> int:
        """KV numbers one token leaves behind, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def body_weights(self) -> int:
        """Weights each token is multiplied with, the output head aside."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    def flops(self, *, tokens: int, context: int, sampled: int) -> int:
        """Multiply-adds x 2 of a step: `tokens` computed, `context` = the sum over these
        tokens of how many positions each attends to, `sampled` rows of logits."""
        attention = 4 * self.num_layers * self.num_heads * self.head_dim
        return (
            2 * self.body_weights * tokens + attention * context + 2 * self.head_weights * sampled
        )
