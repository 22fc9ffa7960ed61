"""Writes oracle.json.gz: what Transformers answers, greedily, with the default model.

    python -m tests.parity.make_oracle MODEL.gguf [OUTPUT]

The weights are dequantised by the `gguf` package and put into a LlamaForCausalLM here, in fp32
with eager attention. Prompts of equal length run together, so nothing is ever padded. The end
of a text does not stop it: every prompt gets the same number of tokens.
"""

from __future__ import annotations

import gzip
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.weights.gguf_file import GgufFile
from tests.parity.prompts import CHAT, oracle_texts

NUM_PROMPTS, NUM_TOKENS, TOGETHER = 128, 64, 4
SHORTEST, LONGEST = 5, 200
OUTPUT = Path(__file__).parent / "oracle.json.gz"
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_model(path: Path) -> LlamaForCausalLM:
    """The GGUF file as a Transformers model in fp32."""
    reader = GGUFReader(path)

    def value(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    stored = {t.name for t in reader.tensors}
    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings="output.weight" not in stored,
    )
    weights = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        values = values.reshape(tuple(reversed(tensor.shape.tolist())))
        if ".attn_q." in tensor.name:
            values = _halves_together(values, heads)
        if ".attn_k." in tensor.name:
            values = _halves_together(values, kv_heads)
        weights[_their_name(tensor.name)] = torch.from_numpy(values.copy())
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def _halves_together(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp stores the rows of a head as 0, n/2, 1, n/2 + 1, ...; put them back in order."""
    per_head = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def _their_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{NAMES[part]}.{kind}"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }[name]


def make_prompts(path: Path) -> list[list[int]]:
    """Prompts in groups of equal length, from SHORTEST to LONGEST tokens."""
    tokenizer = load_gguf_tokenizer(GgufFile(path).metadata)
    prompts = []
    for i, text in enumerate(oracle_texts(NUM_PROMPTS)):
        groups = NUM_PROMPTS // TOGETHER - 1
        length = SHORTEST + (LONGEST - SHORTEST) * (i // TOGETHER) // groups
        ids = tokenizer.encode(text).tolist()
        if i % TOGETHER == TOGETHER - 1 and length > 20:
            frame = tokenizer.encode(CHAT.format(text="")).tolist()
            opening, closing = frame[:3], frame[3:]
            prompts.append([*opening, *ids[: length - len(frame)], *closing])
        else:
            prompts.append(ids[:length] if i % 2 == 0 else ids[-length:])
    return prompts


@torch.no_grad()
def answer(model: LlamaForCausalLM, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """The greedy continuation of prompts of one length."""
    ids = torch.tensor(prompts)
    chosen, logprobs, gaps = [], [], []
    past = None
    for _ in range(NUM_TOKENS):
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        chances: Tensor = out.logits[:, -1].float().log_softmax(-1)
        top = chances.topk(2)
        chosen.append(top.indices[:, 0])
        logprobs.append(top.values[:, 0])
        gaps.append(top.values[:, 0] - top.values[:, 1])
        ids = top.indices[:, :1]
    columns = [torch.stack(column, 1).tolist() for column in (chosen, logprobs, gaps)]
    return [
        {
            "prompt": prompt,
            "tokens": tokens,
            "logprobs": [round(x, 6) for x in lps],
            "gaps": [round(x, 6) for x in top_gaps],
        }
        for prompt, tokens, lps, top_gaps in zip(prompts, *columns, strict=True)
    ]


def main(path: Path, output: Path) -> None:
    model, prompts = load_model(path), make_prompts(path)
    answers: list[dict[str, Any]] = []
    for at in range(0, len(prompts), TOGETHER):
        answers += answer(model, prompts[at : at + TOGETHER])
        print(f"{len(answers)} of {len(prompts)}", flush=True)
    oracle = {
        "what": "greedy tokens, their logprobs, and the gap to the second likeliest, in nats",
        "model": path.name,
        "versions": {name: version(name) for name in ("torch", "transformers", "gguf")},
        "dtype": "float32",
        "attention": "eager",
        "answers": answers,
    }
    with output.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(json.dumps(oracle, separators=(",", ":")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else OUTPUT)
