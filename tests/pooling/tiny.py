"""Tiny random encoders and decoders in directories, with a tokenizer of a few words, and what
Transformers makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)
from transformers.models.bert import BertConfig
from transformers.models.distilbert import DistilBertConfig
from transformers.models.electra import ElectraConfig
from transformers.models.eurobert import EuroBertConfig
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gte import GteConfig
from transformers.models.jina_embeddings_v3 import JinaEmbeddingsV3Config
from transformers.models.llama import LlamaConfig
from transformers.models.modernbert import ModernBertConfig
from transformers.models.mpnet import MPNetConfig
from transformers.models.nomic_bert import NomicBertConfig
from transformers.models.qwen3 import Qwen3Config
from transformers.models.roberta import RobertaConfig
from transformers.models.xlm_roberta import XLMRobertaConfig

from quire import LLM

WORDS = [f"w{i}" for i in range(60)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "yes", "no"]
VOCAB = len(SPECIAL) + len(WORDS) + 30
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.25,
}
ENCODERS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**SIZES, max_position_embeddings=64),
    "bert, other activation": BertConfig(**SIZES, max_position_embeddings=64, hidden_act="relu"),
    "roberta": RobertaConfig(**SIZES, max_position_embeddings=66, type_vocab_size=1),
    "xlm-roberta": XLMRobertaConfig(**SIZES, max_position_embeddings=66, type_vocab_size=1),
    "distilbert": DistilBertConfig(
        vocab_size=VOCAB,
        dim=48,
        hidden_dim=80,
        n_layers=3,
        n_heads=4,
        initializer_range=0.25,
        max_position_embeddings=64,
    ),
    "nomic_bert": NomicBertConfig(**SIZES, max_position_embeddings=64),
    # Two periods of its pattern, and a window that is shorter than the texts.
    "modernbert": ModernBertConfig(
        **{**SIZES, "num_hidden_layers": 6},
        max_position_embeddings=64,
        local_attention=8,
        pad_token_id=1,
    ),
    "modernbert, every bias": ModernBertConfig(
        **{**SIZES, "num_hidden_layers": 4},
        max_position_embeddings=64,
        local_attention=6,
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        classifier_bias=True,
        classifier_pooling="mean",
        pad_token_id=1,
    ),
    "embedding gemma": Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 4},
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=20,
        attention_bias=True,
        use_bidirectional_attention=True,
    ),
    "jina v3": JinaEmbeddingsV3Config(**SIZES, max_position_embeddings=66),
    "gte": GteConfig(**SIZES, max_position_embeddings=64, type_vocab_size=2),
    "gte, no types": GteConfig(**SIZES, max_position_embeddings=64, type_vocab_size=0),
    "mpnet": MPNetConfig(**SIZES, max_position_embeddings=166, pad_token_id=0),
    "electra": ElectraConfig(**SIZES, embedding_size=48, max_position_embeddings=64),
    "electra, narrow": ElectraConfig(**SIZES, embedding_size=32, max_position_embeddings=64),
    "eurobert": EuroBertConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 250.0},
        pad_token_id=1,
        classifier_pooling="mean",
    ),
    "eurobert, every bias": EuroBertConfig(
        **SIZES,
        max_position_embeddings=64,
        attention_bias=True,
        mlp_bias=True,
        pad_token_id=1,
        classifier_pooling="bos",
    ),
}
HEADS: dict[str, Any] = {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 1}
DECODERS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**SIZES, **HEADS, head_dim=16, tie_word_embeddings=False),
    "llama": LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=True),
}


def texts(count: int = 12, *, longest: int = 40, seed: int = 0) -> list[str]:
    """Texts of many lengths, some of them equal ones."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=1 + int(rng.integers(longest)))) for _ in range(count)]


def write_tokenizer(directory: Path, *, around: bool = True, types: bool = False) -> Any:
    """A tokenizer of whole words; `around`: <s> text </s> (</s> text </s>)."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if around:
        second = ":1" if types else ""
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair=f"<s> $A </s> $B{second} </s>{second}",
            special_tokens=[("<s>", 0), ("</s>", 2)],
        )
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    backend.save(str(directory / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    return backend


def randomised(model: Any, seed: int = 0) -> Any:
    """Every parameter new: zero biases and unit norms hide mistakes."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=made) * 0.2
            parameter.copy_(noise + 1 if parameter.dim() == 1 else noise)
    return model.eval()


KINDS = {
    "model": AutoModel,
    "classes": AutoModelForSequenceClassification,
    "tokens": AutoModelForTokenClassification,
    "generator": AutoModelForCausalLM,
}


def write_model(
    directory: Path, config: PretrainedConfig, kind: str = "model", **changes: Any
) -> Any:
    """A random model of a config, stored as Transformers does; and that model."""
    config = type(config)(**{**config.to_dict(), "architectures": None, **changes})
    model = randomised(KINDS[kind].from_config(config, attn_implementation="eager"))
    model.save_pretrained(directory)
    types = getattr(config, "type_vocab_size", 1) > 1
    write_tokenizer(directory, around=True, types=types)
    return model


def open_llm(directory: Path, **options: Any) -> LLM:
    return LLM(str(directory), **{"dtype": "float32", "kv_cache_memory_bytes": 8 << 20, **options})


def write_sentence_files(
    directory: Path,
    mode: str | None,
    *,
    normalise: bool = True,
    dense: int | None = None,
    hidden: int = 48,
    **more: Any,
) -> Tensor | None:
    """modules.json and what it names; the weight of the dense layer, if there is one."""
    base = "sentence_transformers.models"
    modules: list[dict[str, Any]] = [
        {"idx": 0, "name": "0", "path": "", "type": f"{base}.Transformer"}
    ]
    weight = None
    if mode is not None:
        modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{base}.Pooling"})
        (directory / "1_Pooling").mkdir(exist_ok=True)
        config: dict[str, Any] = {"pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True}
        config["word_embedding_dimension"] = hidden
        (directory / "1_Pooling" / "config.json").write_text(json.dumps({**config, **more}))
    if dense is not None:
        from safetensors.torch import save_file

        modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": f"{base}.Dense"})
        (directory / "2_Dense").mkdir(exist_ok=True)
        made = torch.Generator().manual_seed(5)
        weight = torch.randn(dense, hidden, generator=made)
        bias = torch.randn(dense, generator=made)
        save_file(
            {"linear.weight": weight, "linear.bias": bias},
            directory / "2_Dense" / "model.safetensors",
        )
        sizes = {
            "in_features": hidden,
            "out_features": dense,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (directory / "2_Dense" / "config.json").write_text(json.dumps(sizes))
        weight = torch.cat([weight, bias[:, None]], 1)
    if normalise:
        modules.append({"idx": 3, "name": "3", "path": "3_N", "type": f"{base}.Normalize"})
    (directory / "modules.json").write_text(json.dumps(modules))
    return weight


@torch.no_grad()
def hidden_of(model: Any, ids: Sequence[int], types: Sequence[int] | None = None) -> Tensor:
    """Transformers' last hidden states of one text. [T, H]"""
    more = {} if types is None else {"token_type_ids": torch.tensor([list(types)])}
    base = getattr(model, model.base_model_prefix, model)
    states: Tensor = base(input_ids=torch.tensor([list(ids)]), **more).last_hidden_state[0]
    return states


def similarity(one: Any, other: Any) -> float:
    a, b = np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
