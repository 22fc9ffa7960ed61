"""Whisper's decoder: learned positions, LayerNorm, a gelu feed-forward without gate, and
cross-attention to an encoded sound. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, ModelNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_plan import CrossPlan, MlpPlan
from quire.spec import ModelSpec

EPS = 1e-5
# The usual names of keys, and this family's.
WORDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "decoder_attention_heads",
    "num_key_value_heads": "decoder_attention_heads",
    "num_hidden_layers": "decoder_layers",
    "max_position_embeddings": "max_target_positions",
}


def read(fields: Fields) -> ModelSpec:
    said = fields.under(WORDS, max_position_embeddings=448)
    return read_decoder_with_table(
        said,
        max_len=said.count("max_position_embeddings"),
        mlp=MlpPlan(fields.count("decoder_ffn_dim"), activation="gelu", gated=False, bias=True),
        norm_eps=EPS,
        cross=CrossPlan(fields.count("max_source_positions", 1500)),
        qkv_bias=True,
        k_bias=False,
        o_bias=True,
    )


FAMILY = Family(
    name="whisper",
    architectures=("WhisperForConditionalGeneration",),
    read=read,
    outer_names=ModelNames(
        layer=Name("model.decoder.layers.{}", "blk.{}"),
        embed=Name("model.decoder.embed_tokens", "token_embd"),
        positions=Name("model.decoder.embed_positions", "position_embd"),
        norm=Name("model.decoder.layer_norm", "output_norm"),
        head=Name("proj_out", "output"),
    ),
    names=LayerNames(
        attn_norm=Name("self_attn_layer_norm", "attn_norm"),
        o=Name("self_attn.out_proj", "attn_output"),
        mlp_norm=Name("final_layer_norm", "ffn_norm"),
        up=Name("fc1", "ffn_up"),
        down=Name("fc2", "ffn_down"),
    ),
    # The tower reads these, to make keys and values of a sound.
    buffers=tuple(
        f"encoder_attn.{one}" for one in ("k_proj.weight", "v_proj.weight", "v_proj.bias")
    ),
    without_effect={
        **dict.fromkeys(
            (
                *("dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"),
                *("init_std", "apply_spec_augment", "mask_time_prob", "mask_time_length"),
                *("mask_time_min_masks", "mask_feature_prob", "mask_feature_length"),
                "mask_feature_min_masks",
            ),
            "training",
        ),
        **dict.fromkeys(
            ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_mel_bins"),
            "the tower reads it",
        ),
        **dict.fromkeys(("use_weighted_layer_sum", "classifier_proj_size"), "classifiers"),
        "decoder_start_token_id": "prompts begin with it themselves",
        "suppress_tokens": "generation_config.json counts",
        "begin_suppress_tokens": "generation_config.json counts",
        "median_filter_width": "times of words, which are not built",
    },
    only={
        "is_encoder_decoder": (True,),
        "activation_function": ("gelu",),
        "scale_embedding": (False,),
    },
)
