"""Quantised weights through the whole engine on a GPU; sections of gpu_quant.py."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import MODELS

Line = dict[str, Any]


def models() -> Iterator[Line]:
    """Small models in each layout through the engine, beside the same with plain weights."""
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM

    from quire import LLM, SamplingParams
    from tests.weights.quantised_files import CASES, write_quantised

    config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4)
    config.num_attention_heads, config.num_key_value_heads, config.vocab_size = 8, 4, 2048
    config.head_dim = 64
    torch.manual_seed(1)
    plain = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompts = [[(7 * i + j * j) % 2000 for j in range(20 + 40 * i)] for i in range(8)]
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "bfloat16"}
    usual |= {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 1024}
    methods = {"awq": "awq", "gptq desc_act": "gptq", "fp8 by tensor": "fp8", "nf4": "bitsandbytes"}
    for name, method in methods.items():
        with tempfile.TemporaryDirectory() as directory:
            write_quantised(plain, Path(directory), CASES[name])
            found = []
            for quantization in (method, "none"):
                with LLM(directory, quantization=quantization, **usual) as llm:
                    held = torch.cuda.memory_allocated() >> 20
                    found.append(llm.generate(prompts, params, use_tqdm=False))
            firsts = [[_first_logprob(one) for one in outputs] for outputs in found]
            apart = max(abs(a - b) for a, b in zip(*firsts, strict=True))
            same = [
                a.outputs[0].token_ids[0] == b.outputs[0].token_ids[0]
                for a, b in zip(*found, strict=True)
            ]
            yield {"model": name, "first logprobs apart": apart, "same": sum(same), "MiB": held}


def _first_logprob(output: Any) -> float:
    first = output.outputs[0].logprobs[0]
    return float(next(iter(first.values())).logprob)


LAYOUTS: dict[str, dict[str, Any] | None] = {
    "bf16": None,
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "fp8": {"quant_method": "fbgemm_fp8"},
    "fp8 blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


# Rows, tokens of each prompt, tokens of each answer.
WORK = ((16, 16, 256), (64, 16, 128), (256, 16, 64), (64, 1024, 1))


def speed() -> Iterator[Line]:
    """Tokens per second at the shape of Llama-3.1-8B, random weights kept in each layout."""
    from quire import LLM, SamplingParams

    config = json.loads((MODELS / "llama-3.1-8b.json").read_text())
    usual: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True}
    for name, said in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as directory:
            full = config if said is None else {**config, "quantization_config": said}
            (Path(directory) / "config.json").write_text(json.dumps(full))
            began = time.perf_counter()
            kept = None if said is None else said["quant_method"]
            more = {"enable_prefix_caching": False, "max_model_len": 4096, "quantization": kept}
            with LLM(directory, **usual, **more) as llm:
                line: Line = {"layout": name, "start": time.perf_counter() - began}
                for rows_, prompt, most in WORK:
                    prompts = [[(i * 31 + j) % 9999 for j in range(prompt)] for i in range(rows_)]
                    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
                    for _ in range(2):
                        began = time.perf_counter()
                        llm.generate(prompts, params, use_tqdm=False)
                        seconds = time.perf_counter() - began
                    tokens = rows_ * (most if most > 1 else prompt)
                    line[f"{rows_} x {prompt} + {most}"] = tokens / seconds
                yield line
