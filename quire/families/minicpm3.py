"""MiniCPM3: latent attention in a dense model, and factors of embeddings, branches and logits. No
torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.latents import HEAD_KEYS, SIZES, read_latent_decoder
from quire.families.reading import num_layers
from quire.spec import LogitsPlan, ModelSpec

OWN_SIZES = {
    **SIZES,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
}


def read(fields: Fields) -> ModelSpec:
    hidden, root = fields.count("hidden_size"), num_layers(fields) ** 0.5
    # Null is another default here than a missing key.
    depth = fields.positive("scale_depth", root if "scale_depth" in fields.values else 1.4)
    base = fields.count("dim_model_base", hidden if "dim_model_base" in fields.values else 256)
    return read_latent_decoder(
        fields,
        sizes={**OWN_SIZES, "v_head_dim": hidden // fields.count("num_attention_heads")},
        interleaved=False,
        norm_eps=1e-5,
        mlp_bias=fields.flag("mlp_bias", False),
        layer={"branch_scale": depth / root},
        facts={
            "embedding_scale": fields.positive("scale_emb", 12),
            "logits": LogitsPlan(scale=base / hidden),
            "tied_embeddings": fields.flag("tie_word_embeddings", True),
        },
    )


FAMILY = Family(
    name="minicpm3",
    architectures=("MiniCPM3ForCausalLM",),
    read=read,
    unsaid=sizes(73_448, 2560, 6400, 62, 40, 32_768),
    without_effect=HEAD_KEYS,
)
