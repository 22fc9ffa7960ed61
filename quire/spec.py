"""ModelSpec: a Hugging Face or GGUF config reduced to what quire uses. Knows nothing of torch.

Every field is a fact about the architecture, as the family's file in quire/families read it.
`layers` says the same layer by layer, which is how a model is built.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.layer_plan import AttentionPlan, LayerPlan, MlpPlan, Rope, RopeScaling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only model."""

    family: str  # a name of families/registry.py: what the weights are called, nothing else
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
    rotary_dims: int | None = None  # numbers of a head that RoPE turns, the first; None = all
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head's q and k before RoPE
    o_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    # One entry per layer: how many tokens back a query sees (itself included), None = all.
    windows: tuple[int | None, ...] = ()
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    dtype: str = "float32"  # what the weights were stored in

    @property
    def layers(self) -> tuple[LayerPlan, ...]:
        """What each layer computes."""
        mlp = MlpPlan(self.intermediate_size, bias=self.mlp_bias)
        return tuple(
            LayerPlan(self._attention(window), mlp)
            for window in self.windows or (None,) * self.num_layers
        )

    def _attention(self, window: int | None) -> AttentionPlan:
        return AttentionPlan(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rope=Rope(self.rope_theta, self.rotary_dims or self.head_dim, self.rope_scaling),
            window=window,
            qkv_bias=self.qkv_bias,
            o_bias=self.o_bias,
            qk_norm=self.qk_norm,
        )

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
