"""Requests made by chance, with every feature of sampling mixed: the same bits whichever way they
are computed, on a CPU and on a GPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.shapes import save_tokenizer
from quire import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from tests.parity.test_same_tokens import preempt_every_second_step

VOCABULARY = 1500
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
STATES = ["linear_attention", "full_attention", "linear_attention"]
EXPERTS = {"num_experts_per_tok": 2, "hidden_act": "silu"}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gemma3": {
        **LLAMA,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": 48,
        "layer_types": KINDS,
        "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma4": {
        **LLAMA,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "sliding_window": 48,
        "global_head_dim": 128,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_activation": "gelu_pytorch_tanh",
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
    },
    "qwen3_moe": {
        **LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **EXPERTS,
        "num_experts": 8,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    },
    "qwen2_moe": {  # one number for each token opens the shared expert
        **LLAMA,
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        **EXPERTS,
        "num_experts": 7,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "gpt_oss": {
        **LLAMA,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        **EXPERTS,
        "num_local_experts": 8,
        "sliding_window": 48,
        "layer_types": KINDS,
    },
    "qwen3_5": {
        **LLAMA,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": STATES,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "bamba": {
        **LLAMA,
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "attn_layer_indices": [1],
        "mamba_expand": 1,
        "mamba_n_heads": 16,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 4,
    },
    "mamba2": {
        **{key: LLAMA[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")},
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "num_heads": LLAMA["hidden_size"] // 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 4,
    },
    "gemma3n": {
        **LLAMA,
        "architectures": ["Gemma3nForCausalLM"],
        "model_type": "gemma3n_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "sliding_window": 48,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 16,
        "activation_sparsity_pattern": [0.8, 0.0, 0.9, 0.0],
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 6},
        "b": {"type": "integer", "minimum": 0, "maximum": 99},
        "c": {"enum": ["x", "yy", 3, None]},
    },
    "required": ["a", "b", "c"],
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "leaf": {"type": "boolean"},
                "below": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["leaf"],
        }
    },
    "$ref": "#/$defs/node",
}
SHAPES: list[dict[str, Any]] = [
    {"regex": "[a-f]{3,20}(x|yz)"},
    {"regex": "\\w{2,9} (on|off)"},
    {"json": SCHEMA},
    {"json": {**SCHEMA, "additionalProperties": True}},
    {"json": TREE},
    {"choice": ["alpha", "beta", "gamma gamma"]},
]
WAYS: dict[str, dict[str, Any]] = {
    "with little room": {
        "num_gpu_blocks_override": 110,
        "max_num_seqs": 24,
        "max_num_batched_tokens": 64,
    },
    "with guesses": {
        "num_gpu_blocks_override": 300,
        "max_num_seqs": 64,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
    },
    "eager, without a prefix cache": {
        "num_gpu_blocks_override": 200,
        "max_num_seqs": 9,
        "enforce_eager": True,
        "enable_prefix_caching": False,
    },
}


def ban(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[7::11] = float("-inf")
    return logits


def push(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[300 + len(output_ids) % 50] += 3.0
    return logits


def params(rng: random.Random) -> SamplingParams:
    """Each feature with some probability, as far as they go together."""
    token = lambda: rng.randrange(VOCABULARY)  # noqa: E731
    likely: list[tuple[float, dict[str, Any]]] = [
        (0.3, {"top_p": rng.choice([0.5, 0.9])}),
        (0.3, {"top_k": rng.choice([1, 5, 50])}),
        (0.15, {"min_p": 0.1}),
        (0.35, {"logprobs": rng.choice([0, 1, 5, 20])}),
        (0.04, {"logprobs": -1}),
        (0.12, {"prompt_logprobs": rng.choice([0, 3])}),
        (0.2, {"repetition_penalty": 1.3}),
        (0.15, {"presence_penalty": 0.7, "frequency_penalty": 0.5}),
        (0.15, {"ignore_eos": True}),
    ]
    free: list[tuple[float, dict[str, Any]]] = [
        (0.15, {"logit_bias": {token(): 4.0, token(): -100.0}}),
        (0.08, {"allowed_token_ids": sorted(rng.sample(range(VOCABULARY), 40))}),
        (0.1, {"min_tokens": 5}),
        (0.1, {"stop_token_ids": [token() for _ in range(30)]}),
        (0.1, {"stop": ["e", "qq"]}),
        (0.1, {"bad_words": ["a", "the b"]}),
        (0.08, {"logits_processors": [rng.choice([ban, push])]}),
    ]
    asked: dict[str, Any] = {
        "seed": rng.randrange(10**6),
        "temperature": rng.choice([0, 0, 0.7, 1.0, 1.3]),
        "max_tokens": rng.choice([1, 2, 8, 17, 33, 60]),
    }
    if shape := rng.choice(SHAPES) if rng.random() < 0.25 else None:
        asked |= {"structured_outputs": StructuredOutputsParams(**shape), "max_tokens": 40}
    for share, one in likely if shape else likely + free:
        if rng.random() < share:
            asked |= one
    if asked["temperature"] and rng.random() < 0.2:
        asked["n"] = rng.choice([2, 3])
    asked["min_tokens"] = min(asked.get("min_tokens", 0), asked["max_tokens"])
    return SamplingParams(**asked)


def requests(seed: int, count: int) -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    """Half of the prompts begin as others do."""
    rng = random.Random(seed)
    ids = lambda length: [rng.randrange(1, VOCABULARY) for _ in range(length)]  # noqa: E731
    begins, prompts = [ids(33), ids(64), ids(150), [], [], []], []
    for _ in range(count):
        own = ids(rng.choice([1, 3, 15, 16, 17, 40, 120]))
        prompts.append({"prompt_token_ids": rng.choice(begins) + own})
    return prompts, [params(rng) for _ in range(count)]


def told(output: RequestOutput) -> tuple[object, ...]:
    """All that a caller sees of it."""

    def scores(found: Any) -> object:
        return found and [
            one and sorted((t, s.logprob, s.rank, s.decoded_token) for t, s in one.items())
            for one in found
        ]

    answers = [
        (list(a.token_ids), a.text, a.finish_reason, a.stop_reason, scores(a.logprobs))
        for a in output.outputs
    ]
    return str(output.error), scores(output.prompt_logprobs), answers


def check(home: Path, name: str, count: int, num_alone: int, **options: Any) -> None:
    (home / "config.json").write_text(json.dumps(CONFIGS[name]))
    save_tokenizer(home, VOCABULARY)
    usual = {"load_format": "dummy", "batch_invariant": True, "max_model_len": 1024, **options}
    prompts, asked = requests(sum(name.encode()), count)

    def made(llm: LLM, some: slice = slice(None)) -> list[tuple[object, ...]]:
        given = (prompts[some], asked[some])
        return [told(o) for o in llm.generate(*given, use_tqdm=False, on_error="return")]

    with LLM(str(home), **usual, num_gpu_blocks_override=4000) as llm:
        together = made(llm)
        found = {"again": made(llm)}
        found["alone"] = [one for i in range(num_alone) for one in made(llm, slice(i, i + 1))]
    for way, more in WAYS.items():
        with LLM(str(home), **usual, **more) as llm:
            scheduler = llm._session.engine.scheduler
            if disturbed := (way == "with little room" and options["device"] == "cpu"):
                preempt_every_second_step(scheduler)  # so few requests have room enough
            found[way] = made(llm)
            assert not disturbed or scheduler.num_preemptions > 4
    assert {one[0] for one in together} == {"None"}
    for way, ours in found.items():
        wrong = [i for i, one in enumerate(ours) if one != together[i]]
        assert not wrong, (way, len(wrong), asked[wrong[0]], ours[wrong[0]], together[wrong[0]])


@pytest.mark.parametrize(
    "name",
    [
        *("gemma4", "qwen3_5", "gemma3n"),
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("gemma3", "llama", "bamba", "mamba2", "qwen2_moe")
        ),
    ],
)
def test_random_requests_have_the_same_bits_on_a_cpu(
    name: str, tmp_path: Path, long_mode: bool
) -> None:
    check(
        tmp_path,
        name,
        24 if long_mode else 14,
        3,
        device="cpu",
        dtype="float32",
        quantization="none",
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_random_requests_have_the_same_bits_on_a_gpu(name: str, tmp_path: Path) -> None:
    check(tmp_path, name, 150, 25, device="cuda", dtype="bfloat16")
