"""The same C on processors that this machine imitates: aarch64, and x86-64 with less than it has.

Needs qemu's user mode (and for another architecture a cross compiler); left out with a word
where they are not there.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.native import build
from quire.backends.cpu.native.library import TYPES
from quire.backends.ops import HeadShape
from quire.backends.texts import Sight, attend_texts
from quire.sampling.seeds import NoiseKeys, uniforms
from tests.backends.cpu.native.test_kernels import close, keys_back, keys_turned
from tests.backends.passes import random_pass
from tests.backends.reference import ReferenceKernels
from tests.sampling.making import keys_for, plain_draw

DRIVER, STATES = (Path(__file__).parent / name for name in ("driver.c", "states_driver.c"))
VOCAB = 5000


@dataclass(frozen=True)
class Processor:
    """How to compile for it and how to run what came of it."""

    compilers: tuple[str, ...]
    emulator: tuple[str, ...]


PROCESSORS = {
    # With no more than every Arm of 64 bits has: what is newer, only 8-bit products use.
    "aarch64": Processor(("aarch64-linux-gnu-gcc",), ("qemu-aarch64", "-cpu", "cortex-a72")),
    "x86-64 with AVX2": Processor(
        ("x86_64-linux-gnu-gcc", "gcc"), ("qemu-x86_64", "-cpu", "Haswell")
    ),
    "x86-64 of 2008": Processor(
        ("x86_64-linux-gnu-gcc", "gcc"), ("qemu-x86_64", "-cpu", "Nehalem")
    ),
}


@pytest.fixture(scope="module", params=PROCESSORS)
def processor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def driver(processor: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the driver on a processor."""
    return compiled(processor, DRIVER, tmp_path_factory.mktemp("driver") / "driver")


def compiled(processor: str, source: Path, made: Path) -> list[str]:
    """The command that runs a program with the library's sources there."""
    wanted = PROCESSORS[processor]
    compilers = [found for name in wanted.compilers if (found := shutil.which(name))]
    is_x86 = platform.machine() == "x86_64"
    if processor.startswith("x86-64") and not is_x86:
        compilers = [found for found in compilers if "x86_64" in found]
    if not compilers or shutil.which(wanted.emulator[0]) is None:
        pytest.skip(f"{processor}: needs {wanted.compilers[0]} and {wanted.emulator[0]}")
    flags = [flag for flag in build.FLAGS if flag not in ("-fPIC",)]
    command = [compilers[0], *flags, "-static", f"-I{build.SOURCES}", str(source)]
    command += [*map(str, build.sources()), "-lm", "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [*wanted.emulator, str(made)]


def raw(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


class Reader:
    """Tensors out of the driver's output, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, dtype: torch.dtype, *size: int) -> Tensor:
        count = int(np.prod(size)) * dtype.itemsize
        part = bytearray(self.data[self.at : self.at + count])
        self.at += count
        return torch.frombuffer(part, dtype=dtype).view(size)


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize("sizes", [(9, 3, 64, 16), (4, 1, 24, 5)], ids=str)
def test_every_kernel_computes_the_same_there(
    driver: list[str],
    dtype: torch.dtype,
    window: int | None,
    sizes: tuple[int, int, int, int],
) -> None:
    shape = HeadShape(*sizes, dtype)
    inputs, num_blocks = random_pass(shape, 2)
    made = torch.Generator().manual_seed(2)

    def values(*size: int) -> Tensor:
        return torch.randn(*size, generator=made).to(dtype)

    count, hidden = len(inputs.slots), shape.num_heads * shape.head_dim
    num_turned, half = shape.num_heads + shape.num_kv_heads, shape.head_dim // 2
    all_heads = num_turned + shape.num_kv_heads
    cache = values(2, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    qkv, weight = values(count, all_heads, shape.head_dim), values(hidden)
    angles = torch.randn(count, half, generator=made)
    scores = torch.randn(1, VOCAB, generator=made) * 3
    slopes = torch.arange(shape.num_heads) / 50 * (window is None)
    noise_keys = keys_for([5], position=12, sample=3)
    numbers = [TYPES[dtype], *sizes, window or 0, len(inputs.context_lens), inputs.num_prefill,
               inputs.tables.shape[1], count, num_blocks, VOCAB, -1]  # fmt: skip
    told = [
        torch.tensor(numbers), torch.tensor([shape.scale], dtype=torch.float64),
        inputs.query_starts, inputs.context_lens, inputs.tables, inputs.slots, qkv,
        angles.cos(), angles.sin(), keys_turned(cache), weight,
        *([slopes] if dtype == torch.float32 else []), noise_keys.low, noise_keys.high, scores,
    ]  # fmt: skip
    data = b"".join(map(raw, told))
    run = subprocess.run(driver, input=data, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    reader = Reader(run.stdout)
    own_cache = keys_back(reader.take(dtype, *cache.shape))
    attended = reader.take(dtype, count, hidden)
    judge = ReferenceKernels(shape)
    step = judge.plan_attention(inputs, window)
    turned, kept = qkv.tensor_split((num_turned,), 1)
    q = step.rope_and_store(turned, kept, angles.cos(), angles.sin(), *cache)
    assert close(own_cache, cache)
    assert close(attended, step.attend(q, *own_cache))
    normed = reader.take(dtype, count, hidden)
    assert close(normed, judge.rms_norm(attended, weight, 1e-5))
    assert close(reader.take(dtype, count, half), judge.gate("silu")(qkv[:, 0]))
    if dtype == torch.float32:
        product = normed @ attended[:50].t()
        assert torch.allclose(reader.take(dtype, count, 50), product, atol=1e-4, rtol=1e-4)
        groups = tuple((1, length) for length in inputs.query_starts.diff().tolist())
        sight = Sight(shape.scale, window, slopes if window is None else None)
        q, k, v = qkv.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), 1)
        texts = reader.take(dtype, count, hidden)
        assert torch.allclose(texts, attend_texts(q, k, v, groups, sight), atol=1e-5, rtol=1e-5)
        between = F.gelu(F.layer_norm(texts + attended, (hidden,), weight))
        assert torch.allclose(reader.take(dtype, count, hidden), between, atol=1e-5, rtol=1e-5)
    check_draws(reader, scores, noise_keys)


def check_draws(reader: Reader, scores: Tensor, noise_keys: NoiseKeys) -> None:
    best, few, drawn = (int(reader.take(torch.int64, 1)) for _ in range(3))
    assert best == int(scores.argmax()) and few == 1
    assert drawn == int(plain_draw(scores, noise_keys)[0])
    chance = uniforms(torch.tensor([[drawn]]), noise_keys)[0]
    assert torch.equal(reader.take(torch.float32, 1), chance)
    cut_at = reader.take(torch.float32, 1), reader.take(torch.int64, 1)
    assert cut_at == tuple(column[0, 24:25] for column in scores.sort(descending=True))


@pytest.mark.long
def test_states_take_up_tokens_the_same_there(processor: str, tmp_path: Path) -> None:
    """Two texts, one from a block to the next; matrices of odd sizes, which are corrected or not,
    and lie across the two halves of a block."""
    command = compiled(processor, STATES, tmp_path / "states")
    made, blocks, count = torch.Generator().manual_seed(1), 4, 9
    spans = torch.tensor([[0, 3, 1, 1], [3, 7, 1, 2], [7, 9, -1, 3]])
    for heads, keys, key, value, in_turn, corrects in (
        *((6, 2, 20, 37, 0, 1), (6, 2, 20, 37, 1, 1), (4, 1, 16, 64, 0, 0), (3, 3, 8, 130, 0, 1)),
    ):
        numbers = heads * key * value
        half, room = -(-numbers // 2), numbers // 2 + 5

        def some(*size: int) -> Tensor:
            return torch.randn(*size, generator=made)

        q, k, v = some(count, keys, key), some(count, keys, key) / key, some(count, heads, value)
        decay, rate = (some(count, heads).sigmoid() for _ in range(2))
        cache = some(2, blocks, room)
        told = [len(spans), count, heads, keys, key, value, in_turn, corrects, half, room, blocks]
        given = torch.tensor([*told, -1]), spans, q, k, v, decay, rate, *cache
        data = b"".join(map(raw, given))
        run = subprocess.run(command, input=data, capture_output=True, timeout=300)
        assert run.returncode == 0, run.stderr
        reader = Reader(run.stdout)
        read, kept = torch.empty(count, heads, value), cache.clone()
        at = torch.arange(heads) % keys if in_turn else torch.arange(heads) // (heads // keys)
        for first, last, before, into in spans.tolist():
            flat = torch.cat([kept[0, before, :half], kept[1, before, : numbers - half]])
            state = flat.view(heads, key, value) if before >= 0 else torch.zeros(heads, key, value)
            for t in range(first, last):
                state = state * decay[t, :, None, None]
                wanted = v[t]
                if corrects:
                    wanted = (v[t] - torch.einsum("hk,hkv->hv", k[t, at], state)) * rate[t, :, None]
                state = state + k[t, at][..., None] * wanted[:, None]
                read[t] = torch.einsum("hk,hkv->hv", q[t, at], state)
            kept[0, into, :half], kept[1, into, : numbers - half] = state.flatten().split(
                [half, numbers - half]
            )
        assert torch.allclose(reader.take(torch.float32, *read.shape), read, atol=1e-4)
        assert torch.allclose(reader.take(torch.float32, *kept.shape), kept, atol=1e-5)
