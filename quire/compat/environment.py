"""`vllm.envs`: environment variables that scripts read, with the names and defaults they know.

quire itself reads none of these; docs/api.md has an option for each thing they would decide.
"""

from __future__ import annotations

import os
from typing import Any

DEFAULTS: dict[str, Any] = {
    "LOCAL_RANK": 0,
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_ATTENTION_BACKEND": "",
    "VLLM_BATCH_INVARIANT": False,
    "VLLM_DP_MASTER_IP": "127.0.0.1",
    "VLLM_DP_MASTER_PORT": 0,
    "VLLM_DP_RANK": 0,
    "VLLM_DP_RANK_LOCAL": 0,
    "VLLM_DP_SIZE": 1,
    "VLLM_ENABLE_V1_MULTIPROCESSING": True,
    "VLLM_HOST_IP": "",
    "VLLM_USE_MODELSCOPE": False,
    "VLLM_USE_V1": True,
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def __getattr__(name: str) -> Any:
    if name not in DEFAULTS:
        raise AttributeError(name)
    default, said = DEFAULTS[name], os.environ.get(name)
    if said is None:
        return default
    return said.lower() in ("1", "true") if isinstance(default, bool) else type(default)(said)
