"""Two ranks on one GPU: torch's symmetric memory allows it for tests, NCCL does not.

Good for kernels, graphs and kills, not for timings: the processes take turns on the GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidOption, RankDied
from quire.executor.ranks.sampler import RankSampler
from quire.session.ranks import OVERLAPPING
from quire.steps.handles import Handles
from tests.executor.harness import ints, row_start
from tests.jobs.driving import wait_until
from tests.specs import small_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPTS = [[(7 * i + j * j) % 990 + 3 for j in range(20 + 9 * i)] for i in range(6)]


def boost(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[5 + len(output_ids)] += 2.0
    return logits


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv(OVERLAPPING, "1")
    yield tmp_path


def opened(folder: Path, size: int, **options: Any) -> LLM:
    usual: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": 200,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
    }
    return LLM(str(folder), tensor_parallel_size=size, **{**usual, **options})


def asked(llm: LLM) -> list[Any]:
    greedy = SamplingParams(temperature=0, max_tokens=16, logprobs=2, ignore_eos=True)
    drawn = SamplingParams(temperature=0.8, top_p=0.9, seed=4, max_tokens=16, ignore_eos=True)
    plain = SamplingParams(temperature=0.7, n=2, seed=1, max_tokens=20, ignore_eos=True)
    edited = SamplingParams(temperature=0, logits_processors=[boost], max_tokens=5)
    scored = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=2)
    found = []
    for params in (greedy, drawn, plain, edited, scored):
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found.append([[list(a.token_ids) for a in one.outputs] for one in outputs])
    return found


def test_two_ranks_on_one_gpu_draw_the_same_captured_and_eager(folder: Path) -> None:
    with opened(folder, 2) as llm:
        captured, again = asked(llm), asked(llm)
    with opened(folder, 2, enforce_eager=True) as llm:
        eager = asked(llm)
    assert captured == again == eager
    with opened(folder, 1) as llm:
        alone = asked(llm)
    pairs = [
        (a, b)
        for ours, theirs in zip(captured, alone, strict=True)
        for one, other in zip(ours, theirs, strict=True)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x[:4], y[:4], strict=True)
    ]
    assert sum(a == b for a, b in pairs) / len(pairs) > 0.8  # but for near ties


def test_held_logits_are_whole_however_late_a_stream_makes_them() -> None:
    handles, device = Handles(), torch.device("cuda")
    sampler = RankSampler(small_config(), 1000, device, handles)
    sampler.start(row_start(3, [1, 2], has_processors=True))
    wanted = torch.randn(1, 1000, device=device)
    logits, late = torch.zeros_like(wanted), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(late):
        torch.cuda._sleep(300_000_000)  # cycles, some tenths of a second
        logits.copy_(wanted)
        sampler.sample(logits, ints(3), ints(2), None)
    assert torch.equal(torch.from_numpy(sampler.take_asked()[3]), wanted[0].cpu())


# Of KV, in both ranks together: far more than tests beside this one take and give back meanwhile.
HELD = 16 << 30
BLOCKS = HELD // (2 * 16 * 3 * 64 * 2 * 3)  # keys and values of 16 tokens, 3 heads, 3 layers


def free_memory() -> int:
    return torch.cuda.mem_get_info()[0]


def is_given_back(free: int) -> bool:
    """Whether most of what ranks held is free again; `free` was while they had it."""
    return wait_until(lambda: free_memory() > free + HELD * 3 // 4, 10)


def kill_a_rank(folder: Path) -> None:
    before = free_memory()
    llm = opened(folder, 2, num_gpu_blocks_override=BLOCKS)
    free, pids = free_memory(), llm._session.model.executor.pids
    assert free < before - HELD * 3 // 4
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    threading.Timer(0.5, os.kill, (pids[1], signal.SIGKILL)).start()
    with pytest.raises(RankDied, match="rank 1 was killed by SIGKILL"):
        while True:
            llm.generate(PROMPTS, params, use_tqdm=False)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert is_given_back(free)  # before anything is closed
    llm.close()


ENGINE = """
import sys
from pathlib import Path
from tests.ranks.test_gpu_ranks import BLOCKS, PROMPTS, opened
llm = opened(Path(sys.argv[1]), 2, num_gpu_blocks_override=BLOCKS)
print(*llm._session.model.executor.pids, flush=True)
while True:
    llm.generate(PROMPTS, use_tqdm=False)
"""


def kill_the_engine(folder: Path) -> None:
    command = [sys.executable, "-c", ENGINE, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pids = [int(word) for word in engine.stdout.readline().split()]
        free = free_memory()
        engine.kill()
    assert len(pids) == 2
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
    assert is_given_back(free)


def test_a_killed_rank_and_a_killed_engine_free_the_gpu(folder: Path) -> None:
    """One after the other: beside each other, one would take what the other gives back."""
    kill_a_rank(folder)
    kill_the_engine(folder)


def test_more_ranks_than_gpus_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERLAPPING)
    count = torch.cuda.device_count()
    with pytest.raises(
        InvalidOption, match=f"needs as many GPUs, and this process may use {count}"
    ):
        opened(folder, count + 1)


MEETING = """
import sys
from pathlib import Path
import torch
from quire.executor.ranks.gloo import GlooExchange
from quire.executor.ranks.nccl import NcclExchange
from quire.layers.tp import added
from quire.ranks.shares import RankShare

rank, meeting = int(sys.argv[1]), Path(sys.argv[2])
torch.cuda.set_device(rank)
share = RankShare(rank, 2)
exchange = NcclExchange(share, meeting, GlooExchange(share, meeting))
made = torch.Generator().manual_seed(1)
parts = [torch.randn(2, 7, 256, generator=made).to("cuda", torch.bfloat16) for _ in range(5)]
for both in parts:
    assert torch.equal(exchange.sum(both[rank]), added(both.unbind()))
    assert all(map(torch.equal, exchange.gather(both[rank]), both.unbind()))
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl_adds_parts_in_the_order_of_ranks(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", MEETING]
    ranks = [subprocess.Popen([*arguments, str(i), str(tmp_path / "meeting")]) for i in range(2)]
    assert [one.wait(timeout=120) for one in ranks] == [0, 0]
