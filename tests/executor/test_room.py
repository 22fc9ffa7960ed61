"""Kernels fit into a core, whatever the model: on a GPU one that does not fit fails at its first
call, and tiles are chosen from an estimate of what they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOM = 227 << 10  # bytes of shared memory that a program may have on a Hopper GPU
# hidden, inner, heads, KV heads, head_dim, vocabulary
MODELS = {
    "135M": (576, 1536, 9, 3, 64, 49152),
    "0.5B": (896, 4864, 14, 2, 64, 151936),
    "1.7B": (2048, 8192, 32, 32, 64, 49152),
    "3B": (3072, 8192, 24, 8, 128, 128256),
    "8B": (4096, 14336, 32, 8, 128, 128256),
    "32B": (5120, 25600, 64, 8, 128, 151936),
    "70B": (8192, 28672, 64, 8, 128, 128256),
    "heads of 80": (2560, 10240, 32, 32, 80, 50304),
    "heads of 96": (3072, 8192, 32, 32, 96, 32064),
    "heads of 256": (2048, 16384, 8, 1, 256, 256000),
    "71 heads to one": (4544, 18176, 71, 1, 64, 65024),
}


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_of_a_model_fits_into_a_core(model: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    words = [sys.executable, "-m", "tests.executor.taken_room"]
    words += map(str, [ROOM, *MODELS[model]])
    run = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert not run.returncode, run.stderr[-3000:]
    taken: dict[str, int] = json.loads(run.stdout)
    assert len(taken) > 20
    too_large = {name: size for name, size in taken.items() if size > ROOM}
    assert not too_large
