"""fp8 under the real runner, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.backends.cpu.fast import CpuKernels
from quire.backends.fp8 import FP8, round_lines
from quire.backends.ops import AttentionInputs, HeadShape
from quire.errors import NotSupported
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.executor import CudaExecutor
from quire.executor.cuda.memory import num_cuda_blocks
from quire.executor.memory import block_bytes, make_cache
from quire.layer_parts.state import StatePlan
from quire.layer_plan import CrossPlan
from quire.options import DeviceFacts, parse_options, resolve
from quire.weights.load import dummy_weights
from tests.executor.cuda.plain import (
    PlainExecutor,
    PlainOps,
    RestingAttention,
    RestingKernels,
    answers,
)
from tests.executor.cuda.test_interpreted import STATES, InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, requests
from tests.specs import changed, small_config

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = DeviceFacts("cuda", 80 << 30, 80 << 30, 8, ("bfloat16",))
CPU = DeviceFacts("cpu", 8 << 30, 8 << 30, 2)


def through_fp8(x: Tensor) -> Tensor:
    """x as it comes back out of fp8."""
    numbers, scales = round_lines(x)
    return (numbers.float() * scales[..., None]).to(x.dtype)


class RoundingAttention(RestingAttention):
    """The reference, whose keys and values have been in fp8."""

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return super().attend(q, through_fp8(keys), through_fp8(values), sinks)


@dataclass
class RoundingKernels(RestingKernels):
    """The reference with a cache in fp8."""

    shape: HeadShape

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> RoundingAttention:
        return RoundingAttention(self.shape, inputs, window)


class RoundingOnHost(CpuKernels):
    """The same with states, in plain torch."""

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> RoundingAttention:
        return RoundingAttention(self.shape, inputs, window)


class RoundingOps(PlainOps):
    def feed(self, places: Any, prefixes: object) -> Any:
        fed = super().feed(places, prefixes)
        return replace(
            fed,
            attention={
                kind: RoundingAttention(kind.shape, step.inputs, kind.window)
                for kind, step in fed.attention.items()
            },
        )


class RoundingExecutor(PlainExecutor):
    """What the kernels should do, in plain torch over a cache of floats."""

    def __post_init__(self) -> None:
        self.make_kernels, self.make_ops = RoundingKernels, RoundingOps  # type: ignore[assignment]
        self.config = replace(self.config, kv_cache_dtype="auto")
        super().__post_init__()


@pytest.mark.interpreted
def test_a_cache_in_fp8_gives_the_tokens_of_rounded_keys_and_values() -> None:
    """Prefill, decode, copied blocks (n = 3) and plans of several steps."""
    fields = {"depth": 2, "max_repeat": 4, "num_blocks": 64, "block_size": 16}
    config = small_config(kv_cache_dtype="fp8", **fields)
    asked = [replace(r, max_tokens=4) for r in requests(PLAIN[::4], count=2)]
    got = answers(InterpretedExecutor(config, SPEC, WEIGHTS), config, asked)
    wanted = answers(RoundingExecutor(config, SPEC, WEIGHTS), config, asked)
    assert len(got) == 4
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.interpreted
@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_states_stay_float32_beside_a_cache_in_fp8(
    state: StatePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, and in blocks that change hands: what was a state is read as keys and values of a
    token that is not there, and the other way round."""
    first, second = SPEC.layers
    spec = replace(SPEC, layers=(replace(first, state=state), second))
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    weights = {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}
    fields = {"depth": 2, "max_repeat": 4, "num_blocks": 10, "block_size": 16}
    config = small_config(kv_cache_dtype="fp8", max_num_batched_tokens=24, **fields)
    asked = [replace(r, max_tokens=4) for r in requests(PLAIN[:1], count=4)]
    got = answers(InterpretedExecutor(config, spec, dict(weights)), config, asked)
    made_by = "quire.executor.cpu.local.kernels_for"
    monkeypatch.setattr(made_by, lambda device, shape, batch_invariant: RoundingOnHost(shape))
    plain = replace(config, kv_cache_dtype="auto", depth=1, max_repeat=1, num_blocks=256)
    wanted = answers(LocalExecutor(plain, spec, dict(weights)), plain, asked)
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen3", "mistral, window 9"])
def test_logprobs_through_the_engine_stay_near_fp32(name: str) -> None:
    """Chunked, cached and preempted. Wide limits: a wrong slot or scale costs whole nats."""
    from tests.executor.cuda.test_gpu import bf16_differences

    mean, far = bf16_differences(name, 0.1, kv_cache_dtype="fp8")["ours"]
    assert mean < 0.2
    assert far < 1.5


def test_the_pool_counts_numbers_and_scales() -> None:
    per_token = 2 * SPEC.num_layers * SPEC.num_kv_heads * (SPEC.head_dim + 4)
    assert block_bytes(SPEC, 16, FP8) == 16 * per_token
    cache = make_cache(SPEC, 3, 16, FP8, torch.device("cpu"))
    assert cache.nbytes == 3 * block_bytes(SPEC, 16, FP8)
    assert not cache.view(torch.uint8).any()
    config = small_config(device="cuda", dtype="bfloat16", num_blocks=None)
    wide, narrow = (
        num_cuda_blocks(
            replace(config, kv_cache_dtype=kept, kv_cache_memory_bytes=1 << 20),
            *(SPEC, torch.bfloat16),
            free=1 << 40,
            total=1 << 40,
        )
        for kept in ("auto", "fp8")
    )
    assert narrow == (1 << 20) // (config.block_size * per_token) > 1.5 * wide


def test_fp8_is_resolved_for_a_gpu_and_refused_elsewhere() -> None:
    config = resolve(parse_options({"kv_cache_dtype": "fp8_e4m3"}), SPEC, GPU)
    assert config.kv_cache_dtype == "fp8"
    with pytest.raises(NotSupported, match="kv_cache_dtype='fp8' is built for GPUs"):
        resolve(parse_options({"kv_cache_dtype": "fp8"}), SPEC, CPU)
    capped = SPEC.with_attention(lambda one: replace(one, softcap=5.0))
    with pytest.raises(NotSupported, match="softcap"):
        resolve(parse_options({"kv_cache_dtype": "fp8"}), capped, GPU)
    layers = tuple(replace(one, cross=CrossPlan(8)) for one in SPEC.layers)
    with pytest.raises(NotSupported, match="attend to sounds"):
        resolve(parse_options({"kv_cache_dtype": "fp8"}), replace(SPEC, layers=layers), GPU)
    with pytest.raises(NotSupported, match="block_size 1"):
        resolve(parse_options({"kv_cache_dtype": "fp8", "block_size": 1}), SPEC, GPU)
    with pytest.raises(NotSupported, match="head_dim 18"):
        resolve(parse_options({"kv_cache_dtype": "fp8"}), changed(SPEC, head_dim=18), GPU)


def test_an_older_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.executor.cuda.fp8_kv import check_fp8

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    check_fp8(small_config(device="cuda"))
    with pytest.raises(NotSupported, match=r"kv_cache_dtype='fp8': this GPU .* 8\.0"):
        check_fp8(small_config(device="cuda", kv_cache_dtype="fp8"))
    with pytest.raises(NotSupported, match="or use 'fp8'"):
        CudaExecutor(small_config(device="cuda", kv_cache_dtype="float16"), SPEC, {})


def test_every_kernel_is_warmed_up_without_an_error() -> None:
    from quire.executor.precompile.kernel_calls import Calls

    config = small_config(block_size=16, dtype="float16", kv_cache_dtype="fp8")
    calls = Calls(config, changed(SPEC, qk_norm=True), DEVICE)
    with torch.inference_mode():
        for call in calls.all():
            call()
