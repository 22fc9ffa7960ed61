"""What a process holds: the demo within its limit, and no more after many requests."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from tests.tiny_llm import tiny_llm

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process in memory, after what Python no longer needs is gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ask(llm: LLM, count: int, seed: int) -> None:
    """Short requests, no two of them alike, in calls of 500."""
    params = SamplingParams(max_tokens=2, temperature=1.0, ignore_eos=True)
    for first in range(0, count, 500):
        prompts = [
            {"prompt_token_ids": [10 + (seed + first + i) % 20_000, i % 97, i % 89, 7, 8, 9]}
            for i in range(500)
        ]
        llm.generate(prompts, params, use_tqdm=False)


def test_a_claimed_length_takes_no_memory(tmp_path: Path) -> None:
    """50 million positions are 800 MB of cos and sin; the KV cache holds some thousands."""
    before = resident()
    claimed = {"max_position_embeddings": 50_000_000}
    with tiny_llm(tmp_path, hf_overrides=claimed) as llm:
        ask(llm, 500, seed=1)
        assert llm.llm_engine.model_config.max_model_len == 50_000_000
        assert resident() - before < 300 * MIB


# A process begins with the peak of the one that started it, and a test's may be large: so a small
# one stands in between.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(used.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(*command: str, cwd: Path) -> int:
    """Bytes that a program held at most."""
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], cwd=cwd, stdout=subprocess.PIPE, check=True
    )
    return int(measured.stdout)


def print_sizes(directory: str, arithmetic: str, warm: str, count: str) -> None:
    """Bytes held after every 500 of `count` requests, once caches and allocators have filled."""
    with tiny_llm(Path(directory), **({"quantization": arithmetic} if arithmetic else {})) as llm:
        ask(llm, int(warm), seed=0)
        print(resident())
        for done in range(0, int(count), 500):
            ask(llm, 500, seed=int(warm) + done)
            print(resident())


def usual_growth(sizes: list[int]) -> float:
    """The median growth from one size to the next. What leaks grows every time; an allocator that
    takes a large piece, or gives one back, does it now and then."""
    return statistics.median(later - size for size, later in pairwise(sizes))


def test_a_leak_is_told_from_an_allocator_that_wanders() -> None:
    wandering = [300 * MIB + (45 * MIB if i in (2, 3, 7) else 0) for i in range(9)]
    stepping = [300 * MIB + (45 * MIB if i > 4 else 0) for i in range(9)]
    assert usual_growth(wandering) == usual_growth(stepping) == 0
    assert usual_growth([size + i * MIB for i, size in enumerate(wandering)]) == MIB


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "arithmetic", [pytest.param("", marks=pytest.mark.long, id="float32"), "int8"]
)
def test_requests_leave_nothing_behind(tmp_path: Path, arithmetic: str, long_mode: bool) -> None:
    """Less than 1 MiB per 1,000 requests, in a process that does nothing else."""
    count, warm = (10_000, 4_000) if long_mode else (2_500, 1_000)
    program = "import sys; from tests.test_memory import print_sizes; print_sizes(*sys.argv[1:])"
    words = [str(tmp_path), arithmetic, str(warm), str(count)]
    measured = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    sizes = [int(line) for line in measured.stdout.split()]
    assert len(sizes) == count // 500 + 1
    assert usual_growth(sizes) < MIB / 2, [round(size / MIB, 1) for size in sizes]


@pytest.mark.long
def test_the_demo_stays_within_a_gigabyte(default_model: Path, tmp_path: Path) -> None:
    peak = peak_of(
        sys.executable, str(ROOT / "examples" / "demo.py"), str(default_model), cwd=tmp_path
    )
    assert peak < 1_000_000_000, f"{peak / 1e6:.0f} MB"


def test_8_bit_weights_lie_in_memory_once(default_model: Path, tmp_path: Path) -> None:
    """135 million weights in bytes, torch and a little: in float32 it would be over 700 MB."""
    program = (
        "import sys; from quire import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], quantization='int8', kv_cache_memory_bytes=32 << 20)\n"
        "llm.generate('One two three', SamplingParams(max_tokens=4), use_tqdm=False)\n"
    )
    peak = peak_of(sys.executable, "-c", program, str(default_model), cwd=tmp_path)
    assert peak < 560e6, f"{peak / 1e6:.0f} MB"
