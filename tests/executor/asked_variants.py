"""Prints what kernels are compiled for, by the warmup's calls and by the process without torch.

    python -m tests.executor.asked_variants

A process of its own, because here kernels must not be interpreted. Nothing is compiled: Triton
says what it is asked for, and is told that somebody else has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton

from quire.config import EngineConfig
from quire.executor.driver import Gpu
from quire.executor.plain_data import from_json, to_json
from quire.executor.precompile.kernel_calls import Calls
from quire.executor.precompile.signatures import Steps
from quire.executor.precompile.worker import Device
from quire.layer_plan import ExpertsPlan, LayerPlan, MlpPlan, NormPlan
from quire.options import Options, resolve
from quire.spec import ModelSpec, for_kernels, plain_decoder

GPU = Gpu((9, 0), 150 << 30, 1 << 30)  # as much memory for a program as where there is no GPU
QWEN = plain_decoder(
    *("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e-6, 1e6),
    qk_norm=True,
    dtype="bfloat16",
)
LLAMA = plain_decoder(
    *("llama", 128256, 2048, 8192, 16, 32, 8, 64, 8192, 1e-5, 5e5), dtype="bfloat16"
)
WIDE = NormPlan(1e-6, one_plus=True)
CAPPED = QWEN.with_windows(*(512, None) * 14).with_attention(
    lambda one: replace(one, qk_norm=WIDE, softcap=30.0, scale=0.1)
)
AROUND = replace(
    CAPPED,
    layers=tuple(
        LayerPlan(one.attention, MlpPlan(3072, "gelu_tanh"), WIDE, "both") for one in CAPPED.layers
    ),
    norm=WIDE,
)
PLAIN_MLP = replace(
    LLAMA, layers=(replace(LLAMA.layers[0], mlp=MlpPlan(8192, "relu2", gated=False)),)
)
MIXTURE = replace(
    QWEN, layers=(replace(QWEN.layers[0], mlp=ExpertsPlan(128, 8, MlpPlan(768))),) * 2
)
# Wide heads without a window, smaller ones with a window.
HEADED = replace(
    QWEN.with_windows(*(512, None) * 14),
    layers=tuple(
        replace(one, attention=replace(one.attention, num_kv_heads=4, head_dim=512, scale=1.0))
        if one.attention.window is None
        else one
        for one in QWEN.with_windows(*(512, None) * 14).layers
    ),
)
CASES: dict[str, tuple[ModelSpec, Options]] = {
    "head_dim 128": (QWEN, Options()),
    "head_dim 64": (LLAMA, Options()),
    "odd sizes, biases": (
        plain_decoder(
            *("llama", 32001, 896, 4864, 16, 14, 2, 64, 8192, 1e-5, 5e5),
            qkv_bias=True,
            dtype="bfloat16",
        ),
        Options(),
    ),
    "windows in some layers": (QWEN.with_windows(*(None, 512) * 14), Options()),
    "float32": (QWEN, Options(dtype="float32")),
    "float16": (QWEN, Options(dtype="float16")),
    "few rows, large blocks": (QWEN, Options(max_num_seqs=4, block_size=32)),
    "KV in fp8": (QWEN, Options(kv_cache_dtype="fp8")),
    "norms around, their weights in float32": (AROUND, Options()),
    "without a gate": (PLAIN_MLP, Options()),
    "experts": (MIXTURE, Options()),
    "sinks, windows in some layers": (
        QWEN.with_windows(*(None, 128) * 14).with_attention(lambda one: replace(one, sinks=True)),
        Options(),
    ),
    "batch_invariant": (QWEN, Options(batch_invariant=True)),
    "heads by layer": (HEADED, Options()),
    "heads by layer, batch_invariant": (HEADED, Options(batch_invariant=True)),
}
asked: list[str] = []


def heard(**told: Any) -> bool:
    """One line for what a kernel is to be compiled for; True: it need not be compiled."""
    said = json.loads(told["compile"]["specialization_data"])
    del said["key"]
    asked.append(json.dumps(said, sort_keys=True))
    return True


def asked_by(calls: list[Callable[[], object]]) -> list[str]:
    asked.clear()
    with torch.inference_mode():
        for call in calls:
            call()
    return sorted(set(asked))


def compared(spec: ModelSpec, config: EngineConfig) -> dict[str, list[str]]:
    calls = Calls(config, spec, torch.device("cpu"))
    sent = from_json(to_json(for_kernels(spec)))  # as the process gets it
    steps = Steps(config, sent, GPU.shared_memory, (0, 0))
    first = asked_by(calls.all())
    later = set(asked_by(calls.later())) - set(first)
    features = set(asked_by(calls.features())) - set(first) - later
    return {
        "first, asked": first,
        "first, listed": asked_by([partial(one.compile) for one in steps.first()]),
        "later, asked": sorted(later),
        "later, listed": asked_by([partial(one.compile) for one in steps.later()]),
        "features, asked": sorted(features),
        "features, listed": asked_by([partial(one.compile) for one in steps.features()]),
        "of torch": asked_by(calls.of_torch()),
    }


def main() -> None:
    triton.runtime.driver.set_active(Device(GPU))
    triton.knobs.runtime.jit_cache_hook = heard
    made = {}
    for name, (spec, options) in CASES.items():
        made[name] = compared(spec, resolve(options, spec, GPU.facts()))
    print(json.dumps(made))


if __name__ == "__main__":
    main()
