"""A family is known to its own file alone."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from quire.families.family import Family
from quire.families.registry import BY_ARCHITECTURE, BY_MODEL_TYPE, FAMILIES

PACKAGE = Path(__file__).resolve().parents[2] / "quire"
# Names of text formats that models brought up: tokenizers, tool calls, parsers of reasoning.
FORMATS = ("inputs", "options")
# What models that see do with images stands in files of its own.
SEEING = ("families/media", "models/towers")
# GGUF files of Mistral and Mixtral say that they are of Llama, and a key of Ministral 3 is named
# after it; those of OLMo 3 say OLMo 2, those of DeepSeek V2 are told from V3's by how experts are
# chosen. Granite-MoE has the factors of Granite, EmbeddingGemma the layers of Gemma 3.
ALSO = {
    "llama": {f"families/{name}.py" for name in ("mistral", "mixtral", "ministral3", "llama4")},
    "qwen2": {"families/qwen2_vl.py"},
    # As "GLM-4.1V" and its like.
    "glm": {f"families/{name}.py" for name in ("glm4v", "glm4v_moe", "glm_ocr")},
    "glm4": {"families/glm4v.py"},
    "glm4_moe": {"families/glm4_moe_lite.py", "families/glm4v_moe.py"},
    "glm4v": {"families/glm4v_moe.py", "families/glm_ocr.py"},
    "qwen3_moe": {"families/qwen3_vl_moe.py"},
    "qwen3": {
        f"families/{name}.py"
        for name in ("qwen3_vl", "qwen3_vl_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
    },
    # As "OLMo 2" and its like, and in the name of a data set.
    "olmo": {
        *("families/olmo2.py", "families/olmo3.py", "families/flex_olmo.py"),
        "families/olmo_hybrid.py",
        "evals/tasks/dataset_files.py",
    },
    "olmo2": {f"families/{name}.py" for name in ("olmo3", "flex_olmo", "olmo_hybrid")},
    "mixtral": {"families/minimax_m2.py", "families/phimoe.py"},
    "granite": {
        f"families/{name}.py"
        for name in (
            *("granitemoe", "granitemoehybrid", "hyperclovax"),
            *("granite_swa", "granitemoe_swa"),
        )
    },
    "gemma2": {"families/vaultgemma.py"},
    "granitemoe": {f"families/{name}.py" for name in ("granitemoehybrid", "granitemoe_swa")},
    "granite_swa": {"families/granitemoe_swa.py"},
    "cohere2": {"families/cohere2_moe.py"},
    "arcee": {"families/afmoe.py"},
    "exaone4": {"families/exaone_moe.py"},
    "gpt2": {
        f"families/{name}.py" for name in ("gpt_bigcode", "gptj", "gpt_neo", "biogpt", "xglm")
    },
    "gptj": {"families/codegen.py"},
    "opt": {"families/biogpt.py", "families/xglm.py"},
    "phi": {"families/phi3.py", "families/phimoe.py"},  # as "Phi-3"
    "phi3": {"families/phimoe.py"},
    "nemotron": {"families/nemotron_h.py"},  # as "Nemotron 3"
    "hunyuan_v1_dense": {"families/hunyuan_v1_moe.py"},
    "lfm2": {"families/lfm2_moe.py"},
    "falcon": {"families/falcon_h1.py"},
    "ernie4_5": {"families/ernie4_5_moe.py", "families/paddleocr_vl.py"},
    "deepseek_v2": {"families/deepseek_v3.py"},
    "gemma4": {"families/gemma4_unified.py"},
    # As "Gemma 2" and its like, and as what GGUF calls EmbeddingGemma.
    "gemma": {
        *("families/gemma2.py", "families/gemma3.py", "families/encoders/embeddinggemma.py"),
        *("families/gemma4.py", "families/gemma4_unified.py", "families/vaultgemma.py"),
        "families/gemma3n.py",
    },
    "gemma3": {"families/encoders/embeddinggemma.py"},
    "bitnet": {"weights/quantised/config.py", "weights/quantised/layout.py"},  # files of any model
    # An API of that company's, which clients speak.
    "cohere": {"openai_api/pooling.py", "openai_api/fields.py"},
}


@cache
def sources() -> dict[str, str]:
    """Every file that is asked for names, in small letters."""
    rooms = tuple(f"{room}/" for room in (*FORMATS, *SEEING))
    named = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    return {
        name: path.read_text(encoding="utf-8").lower()
        for name, path in named.items()
        if not name.startswith(rooms)
    }


def mentions(name: str) -> set[str]:
    """Files that have the word, but for names of programs that begin with it."""
    word = re.compile(rf"(?<![a-z]){name}(?!\.cpp|-gguf|[-_]moe|[a-z0-9])")
    return {file for file, text in sources().items() if name in text and word.search(text)}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_named_in_its_own_file_and_the_registry_alone(family: Family) -> None:
    name, own = family.name, f"families/{family.name}.py"
    assert mentions(name) == {own, "families/registry.py", *ALSO.get(name, ())}
    assert len((PACKAGE / own).read_text(encoding="utf-8").splitlines()) <= 100


def test_no_two_families_answer_to_one_name() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert len(BY_ARCHITECTURE) == sum(len(family.architectures) for family in FAMILIES)
    assert len(BY_MODEL_TYPE) == sum(len(family.model_types) for family in FAMILIES)
