"""How far logprobs with fp8 are from those of the same weights in fp32, through the engine."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from quire.executor.cuda.executor import CudaExecutor
from quire.executor.precompile.warmup import Warmup
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_gpu import gpu_config, logprob_requests
from tests.executor.harness import told
from tests.parity.families import FAMILIES, make_pair

MODES: dict[str, dict[str, str]] = {
    "bf16": {},
    "KV": {"kv_cache_dtype": "fp8"},
}


def differences(name: str, mode: str, spread: float = 0.1) -> tuple[float, float]:
    """(mean, 99th percentile) of |logprob - fp32 oracle's| over prompt and output tokens.

    Chunks of 64 tokens and few blocks: chunked, mixed, preempted and cached passes."""
    family: Any = FAMILIES[name]
    before, family.initializer_range = family.initializer_range, spread
    try:
        pair = make_pair(name, torch.bfloat16)
    finally:
        family.initializer_range = before
    exact = copy.deepcopy(pair.oracle).cuda().float()
    fields: dict[str, Any] = {"max_num_batched_tokens": 64, "num_blocks": 60, **MODES[mode]}
    config = gpu_config(dtype="bfloat16", **fields)
    weights: Any = {key: w.cuda() for key, w in pair.weights.items()}
    executor = CudaExecutor(config, pair.spec, weights, Warmup(config, pair.spec))
    found: list[float] = []
    try:
        for s in answers(executor, config, logprob_requests(pair.spec.vocab_size)):
            text = torch.tensor([[*s.request.prompt_ids.tolist(), *s.output_ids.tolist()]]).cuda()
            with torch.no_grad():
                expected = exact(text).logits[0].log_softmax(-1).cpu()
            entries = told([*s.scores, *s.logprobs])[1]
            assert len(entries) == text.shape[1] - 1
            wanted = expected[torch.arange(len(entries)), text[0, 1:].cpu()]
            found += (torch.tensor(entries) - wanted).abs().tolist()
    finally:
        executor.close()
    return float(np.mean(found)), float(np.percentile(found, 99))
