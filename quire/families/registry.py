"""The families of text models that quire has."""

from __future__ import annotations

from quire.errors import UnsupportedModel
from quire.families import (
    afmoe,
    apertus,
    arcee,
    bamba,
    biogpt,
    bitnet,
    codegen,
    cohere,
    cohere2,
    cohere2_moe,
    cwm,
    dbrx,
    deepseek_v2,
    deepseek_v3,
    dots1,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    exaone_moe,
    falcon,
    falcon_h1,
    flex_olmo,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gemma4_unified,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    glm4v,
    glm4v_moe,
    glm_ocr,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    helium,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    hy_v3,
    hyperclovax,
    jais2,
    lfm2,
    lfm2_moe,
    llama,
    llama4,
    mamba2,
    mellum,
    minicpm3,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    nanochat,
    nemotron,
    nemotron_h,
    olmo,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    opt,
    paddleocr_vl,
    persimmon,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen2_vl,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    qwen3_vl,
    qwen3_vl_moe,
    seed_oss,
    smollm3,
    solar_open,
    stablelm,
    starcoder2,
    vaultgemma,
    whisper,
    xglm,
    youtu,
)
from quire.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    phi3.FAMILY,
    granite.FAMILY,
    olmo2.FAMILY,
    smollm3.FAMILY,
    glm.FAMILY,
    glm4.FAMILY,
    cohere.FAMILY,
    cohere2.FAMILY,
    stablelm.FAMILY,
    starcoder2.FAMILY,
    opt.FAMILY,
    qwen3_moe.FAMILY,
    qwen2_moe.FAMILY,
    mixtral.FAMILY,
    olmoe.FAMILY,
    gemma3.FAMILY,
    gemma4.FAMILY,
    gemma4_unified.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    olmo3.FAMILY,
    gpt2.FAMILY,
    gpt_neox.FAMILY,
    falcon.FAMILY,
    ministral3.FAMILY,
    glm4_moe.FAMILY,
    deepseek_v3.FAMILY,
    deepseek_v2.FAMILY,
    glm4_moe_lite.FAMILY,
    glm4v.FAMILY,
    glm4v_moe.FAMILY,
    glm_ocr.FAMILY,
    paddleocr_vl.FAMILY,
    granitemoe.FAMILY,
    qwen2_vl.FAMILY,
    qwen3_vl.FAMILY,
    qwen3_vl_moe.FAMILY,
    gpt_oss.FAMILY,
    qwen3_next.FAMILY,
    qwen3_5.FAMILY,
    qwen3_5_moe.FAMILY,
    lfm2.FAMILY,
    lfm2_moe.FAMILY,
    granitemoehybrid.FAMILY,
    bamba.FAMILY,
    falcon_h1.FAMILY,
    nemotron_h.FAMILY,
    mamba2.FAMILY,
    ernie4_5.FAMILY,
    ernie4_5_moe.FAMILY,
    seed_oss.FAMILY,
    dots1.FAMILY,
    minimax_m2.FAMILY,
    flex_olmo.FAMILY,
    solar_open.FAMILY,
    exaone4.FAMILY,
    cwm.FAMILY,
    phi.FAMILY,
    nemotron.FAMILY,
    arcee.FAMILY,
    helium.FAMILY,
    hyperclovax.FAMILY,
    gpt_bigcode.FAMILY,
    hunyuan_v1_dense.FAMILY,
    hunyuan_v1_moe.FAMILY,
    olmo.FAMILY,
    apertus.FAMILY,
    exaone_moe.FAMILY,
    phimoe.FAMILY,
    olmo_hybrid.FAMILY,
    llama4.FAMILY,
    jais2.FAMILY,
    vaultgemma.FAMILY,
    youtu.FAMILY,
    gemma3n.FAMILY,
    minicpm3.FAMILY,
    granite_swa.FAMILY,
    granitemoe_swa.FAMILY,
    mellum.FAMILY,
    hy_v3.FAMILY,
    afmoe.FAMILY,
    cohere2_moe.FAMILY,
    nanochat.FAMILY,
    gptj.FAMILY,
    codegen.FAMILY,
    gpt_neo.FAMILY,
    persimmon.FAMILY,
    dbrx.FAMILY,
    biogpt.FAMILY,
    xglm.FAMILY,
    bitnet.FAMILY,
    whisper.FAMILY,
)
# The family of the text of an image model whose config does not name it.
UNSAID_TEXT = llama.FAMILY
BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}
CAUSAL = "ForCausalLM"
# The same layers with another head, or with none.
_OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "Model")
BY_MODEL_TYPE = {name: family for family in FAMILIES for name in family.model_types}


def family_of(architecture: object) -> Family | None:
    """The family whose layers an architecture has, with any head."""
    if not isinstance(architecture, str):
        return None
    names = (architecture, *causal_names(architecture))
    return next((BY_ARCHITECTURE[one] for one in names if one in BY_ARCHITECTURE), None)


def causal_names(architecture: str) -> tuple[str, ...]:
    """What a class that writes text with the same layers may be called; empty if the architecture
    is none with another head, or with none."""
    for ending in _OTHER_HEADS:
        if architecture.endswith(ending):
            stem = architecture.removesuffix(ending)
            # Transformers names the text of models that also see so, and GPT-2 its own way.
            return stem + CAUSAL, stem.removesuffix("Text") + CAUSAL, f"{stem}LMHeadModel"
    return ()


def register_family(architecture: str, family: Family) -> None:
    """In this process, read models of this architecture as the given family."""
    BY_ARCHITECTURE[architecture] = family
    for model_type in family.model_types:
        BY_MODEL_TYPE.setdefault(model_type, family)


def family_named(name: str) -> Family:
    for family in (*FAMILIES, *BY_ARCHITECTURE.values()):
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise UnsupportedModel(f"family {name!r} is not known; quire has {known}.")


def families_of_gguf(architecture: str, source: str) -> tuple[Family, ...]:
    """The families whose GGUF files have this architecture."""
    found = tuple(one for one in FAMILIES if architecture in (one.gguf, *one.gguf_also))
    if not found:
        known = ", ".join(dict.fromkeys(family.gguf for family in FAMILIES if family.gguf))
        raise UnsupportedModel(
            f"{source}: GGUF architecture {architecture[:40]!r} is not supported; quire runs "
            f"{known}, of encoders bert, nomic-bert and modern-bert. Many others are read from "
            "safetensors"
        )
    return found
