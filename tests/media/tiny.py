"""Tiny random models that see, saved as Transformers saves them, and what Transformers makes of a
prompt with images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from quire import LLM
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.weights.source import locate

FIRST_ADDED = 49152  # ids of tokens beside the default model's
TEXT = {
    "vocab_size": FIRST_ADDED + 24,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class TinyModel:
    """A directory, and the module that was saved there."""

    path: Path
    module: Any
    added: tuple[str, ...]

    def llm(self, **options: Any) -> LLM:
        usual = {"dtype": "float32", "quantization": "none", "kv_cache_memory_bytes": 16 << 20}
        return LLM(str(self.path), **{**usual, **options})

    def greedy(self, ids: Sequence[int], count: int, **inputs: Any) -> list[int]:
        return self.written(ids, count, **inputs)[0]

    def written(
        self, ids: Sequence[int], count: int, **inputs: Any
    ) -> tuple[list[int], list[float]]:
        """What Transformers writes after these ids, and the logprob of each token."""
        given = torch.tensor([list(ids)])
        made = self.module.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
            **inputs,
        )
        tokens = made.sequences[0, len(ids) :]
        logprobs = torch.stack(made.logits)[:, 0].log_softmax(-1)
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()


@cache
def base_tokenizer() -> dict[str, Any]:
    """The default model's, as a file has it."""
    made: dict[str, Any]
    made = json.loads(load_gguf_tokenizer(locate("smollm2").gguf.metadata).backend.to_str())
    return made


@cache
def byte_tokenizer() -> dict[str, Any]:
    """As many tokens, those of text single bytes: for machines that have no other."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*named, *alphabet, *(f"~{i}~" for i in range(FIRST_ADDED - 3 - len(alphabet)))]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(named)
    about: dict[str, Any] = json.loads(made.to_str())
    return about


def with_special(tokenizer: dict[str, Any], added: Sequence[str]) -> dict[str, Any]:
    """These special tokens behind those that it has."""
    known = tokenizer["model"]["vocab"]
    assert max(known.values()) == FIRST_ADDED - 1
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    new = [
        {"id": number, "content": token, **plain, "special": True}
        for number, token in enumerate((one for one in added if one not in known), FIRST_ADDED)
    ]
    return {**tokenizer, "added_tokens": [*tokenizer["added_tokens"], *new]}


def save_tiny(
    path: Path, module: Any, added: Sequence[str], processor: dict[str, Any], scale: float = 0.2
) -> TinyModel:
    """With the default model's tokenizer, and these special tokens after its own."""
    generator = torch.Generator().manual_seed(7)
    for name, weight in module.named_parameters():
        # With small norms of q and k all tokens would be attended to alike, wherever they are.
        size = 1.0 if name.endswith(("q_norm.weight", "k_norm.weight")) else scale
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * size)
    module.eval()
    module.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    assert added[0] not in base_tokenizer()["model"]["vocab"], "it is to be the first one added"
    (path / "tokenizer.json").write_text(json.dumps(with_special(base_tokenizer(), added)))
    about = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return TinyModel(path, module, tuple(added))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise over a gradient: every pixel and every resize counts."""
    rng = np.random.default_rng([seed, width, height])
    slope = np.linspace(0, 128, width)[None, :, None] + np.linspace(0, 64, height)[:, None, None]
    noise = rng.integers(0, 64, (height, width, 3))
    return Image.fromarray((slope + noise).astype(np.uint8))
