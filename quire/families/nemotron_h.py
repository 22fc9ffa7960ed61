"""Nemotron-H and Nemotron 3: Mamba-2, attention without rope, and feed-forwards or experts without
a gate; in files every branch is a layer of its own. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.branches import IN_GGUF, MLP, MOE, SHARED, branches_of
from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, KEEPS_STATE
from quire.families.mamba import ONLY, WITHOUT_EFFECT, check_attends, names_of, read_stepping_heads
from quire.families.mixtures import ROUTER_KEYS, read_routed_experts
from quire.families.reading import read_decoder, read_heads
from quire.layer_plan import AttentionPlan, ExpertsPlan, LayerPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

AHEAD = "layers that predict later tokens are not used"
TRAINING = ("time_step_floor", "time_step_max", "hidden_dropout", "rescale_prenorm_residual")
LETTERS = {"M": KEEPS_STATE, "E": MOE, "*": ATTENDS, "-": MLP}


def read(fields: Fields) -> ModelSpec:
    norm = NormPlan(fields.positive("layer_norm_epsilon", 1e-5))
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    sides = heads.heads, heads.kv_heads, heads.head_dim, heads.head_dim**-0.5
    state, behind = read_stepping_heads(fields, norm), _behind(fields)
    branches = branches_of(fields, [KEEPS_STATE, MOE, ATTENDS, MLP], LETTERS, (MLP, MOE))
    check_attends(fields, [kind for kind, _ in branches])
    attending = LayerPlan(AttentionPlan(*sides, rope=None), None, norm)
    kinds = {ATTENDS: attending, KEEPS_STATE: replace(attending, state=state)}
    layers = [replace(kinds[kind], mlp=behind.get(mlp)) for kind, mlp in branches]
    return read_decoder(fields, layers, max_len=fields.count("max_position_embeddings"))


def _behind(fields: Fields) -> dict[str | None, MlpPlan | ExpertsPlan]:
    """What may follow attention or a state. Only the shared one of experts has biases."""
    width, shared = (fields.count(key, 7688) for key in ("intermediate_size", SHARED))
    plain = MlpPlan(width, "relu2", gated=False, bias=fields.flag("mlp_bias", False))
    experts = read_routed_experts(
        fields, count=8, width=7688, per_token=2, shared=replace(plain, width=shared)
    )
    return {
        MLP: plain,
        MOE: replace(experts, expert=replace(plain, width=experts.expert.width, bias=False)),
    }


NAMES = LayerNames(
    attn_norm=Name("norm", "attn_norm"),
    qkv=tuple(Name(f"mixer.{one}_proj", f"attn_{one}") for one in "qkv"),
    o=Name("mixer.o_proj", "attn_output"),
    **names_of("mixer"),
    mlp_norm=Name("norm", "attn_norm"),
    up=Name("mixer.up_proj", "ffn_up"),
    down=Name("mixer.down_proj", "ffn_down"),
    router=Name("mixer.gate", "ffn_gate_inp"),
    router_choice=Name("mixer.gate.e_score_correction", "exp_probs_b", bare=True),
    expert_gate_up=(Name("mixer.experts.{}.up_proj", "ffn_up_exps"),),
    expert_down=Name("mixer.experts.{}.down_proj", "ffn_down_exps"),
    expert_stacks=("mixer.experts.up_proj", "mixer.experts.down_proj"),
    shared_gate_up=(Name("mixer.shared_experts.up_proj", "ffn_up_shexp"),),
    shared_down=Name("mixer.shared_experts.down_proj", "ffn_down_shexp"),
)
FAMILY = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    read=read,
    unsaid=sizes(131_072, 4096, 21_504, 4, 32, 4096),
    names=NAMES,
    outer_names=ModelNames(
        Name("backbone.layers.{}", "blk.{}"),
        embed=Name("backbone.embeddings", "token_embd"),
        norm=Name("backbone.norm_f", "output_norm"),
    ),
    branches_apart=True,
    gguf="nemotron_h",
    gguf_also=("nemotron_h_moe",),
    **IN_GGUF,
    without_effect={
        **ROUTER_KEYS,
        **WITHOUT_EFFECT,
        **dict.fromkeys(TRAINING, "training"),
        "expand": "the heads' size says the width",
        "mamba_ssm_cache_dtype": "states are kept in float32",
        "moe_shared_expert_overlap": "the order of work",
        "num_logits_to_keep": "what a call returns",
        **dict.fromkeys(("num_nextn_predict_layers", "mtp_layers_block_type"), AHEAD),
    },
    only={
        **ONLY,
        "mlp_hidden_act": ("relu2",),
        "mamba_hidden_act": ("silu",),
        "n_shared_experts": (1,),
        **dict.fromkeys(("attention_bias", "mamba_proj_bias", "residual_in_fp32"), (False,)),
        "tie_word_embeddings": (False,),
        **dict.fromkeys(("moe_latent_size", "sliding_window"), (None,)),
    },
)
