"""With batch_invariant=True a GPU, too, gives a row the same bits in any batch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.backends.experts import EveryExpert
from quire.backends.ops import HeadShape
from quire.backends.triton.invariant import ROW_COUNTS, SteadyKernels, SteadyLinear
from quire.backends.triton.kernels import TritonKernels
from quire.executor.cuda.executor import CudaExecutor
from quire.layer_plan import Rope
from quire.request import Request
from quire.sampling.keys import noise_key
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.spec import ModelSpec, plain_decoder
from quire.step import Scores
from quire.weights.load import dummy_weights
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_gpu import gpu_config

pytestmark = pytest.mark.gpu

SPEC = plain_decoder(
    family="qwen3",
    vocab_size=1000,
    hidden_size=512,
    intermediate_size=1536,
    num_layers=3,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    max_model_len=4096,
    norm_eps=1e-6,
    rope_theta=10000.0,
    tied_embeddings=True,
    qk_norm=True,
)
# A window's layers with heads of 256, others with heads of 512, as few models have them.
WIDE = SPEC.with_windows(48, None, 48)
SPECS = {
    "plain": SPEC,
    "large heads": replace(
        WIDE,
        layers=tuple(
            replace(one, attention=replace(one.attention, head_dim=size, rope=Rope(1e4, size)))
            for one, size in zip(WIDE.layers, (256, 512, 256), strict=True)
        ),
    ),
    "windows and sinks": SPEC.with_windows(None, 600, 48).with_attention(
        lambda one: replace(one, sinks=True)
    ),
}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "logprobs": 1},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "logprobs": 0},
    {"temperature": 1.0, "prompt_logprobs": 0, "logprobs": 0},
    {"temperature": 1.0, "repetition_penalty": 1.2, "logprobs": 2},
]


def asked(count: int) -> list[Request]:
    """The same however many; some begin alike."""
    rng = random.Random(7)
    shared = [rng.randrange(1000) for _ in range(600)]
    made = []
    for number in range(512):
        own = [rng.randrange(1000) for _ in range(rng.choice([3, 30, 200, 700, 1300]))]
        ids = shared * (number % 3 == 0) + own
        most = rng.randint(2, 40)
        params = SamplingParams(max_tokens=most, ignore_eos=True, **KINDS[number % len(KINDS)])
        made.append(
            Request(number, np.array(ids, np.int32), params, most, noise_key(number), frozenset())
        )
    return made[:count]


def bits(sequences: list[Sequence]) -> list[tuple[object, ...]]:
    """Tokens, and logprobs as they lie in memory."""
    return [(one.output_ids.tolist(), _bits(one.logprobs), _bits(one.scores)) for one in sequences]


def _bits(parts: list[Scores]) -> tuple[list[int], bytes]:
    tokens = [token for part in parts for token in part.token_ids.tolist()]
    return tokens, b"".join(part.logprobs.tobytes() for part in parts)


def run(
    spec: ModelSpec, count: int, *, groups: bool = False, **changes: Any
) -> list[tuple[object, ...]]:
    config = gpu_config(
        dtype="bfloat16",
        batch_invariant=True,
        max_model_len=4096,
        **{"num_blocks": 20_000, "max_num_seqs": 512, "max_num_batched_tokens": 16384, **changes},
    )
    made = dummy_weights(spec, dtype=torch.bfloat16, device="cuda")
    weights = {name: w * 4 if w.dim() == 2 else w for name, w in made.items()}
    executor = CudaExecutor(config, spec, weights)
    try:
        return bits(answers(executor, config, asked(count), prefix_groups=groups))
    finally:
        executor.close()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_row_has_the_same_bits_in_any_batch(spec: ModelSpec) -> None:
    """Batches of 1, 7, 64 and 512; chunks of 256; groups; 1 and 32 steps a plan; without graphs;
    and with so few blocks that rows are preempted."""
    whole = run(spec, 512)
    for count, changes in (
        (1, {}),
        (7, {}),
        (64, {"max_repeat": 1}),
        (64, {"max_num_batched_tokens": 256, "max_num_seqs": 64}),
        (64, {"enforce_eager": True, "max_num_seqs": 17}),
        (512, {"groups": True, "max_repeat": 4}),
        (512, {"num_blocks": 1500}),
    ):
        got = run(spec, count, **changes)
        wrong = [i for i, (one, other) in enumerate(zip(got, whole, strict=False)) if one != other]
        assert not wrong, (count, changes, len(wrong), wrong[:9])


@pytest.mark.parametrize(("outer", "inner"), [(6144, 1024), (1024, 3072), (6144, 4096)])
def test_a_row_of_a_product_has_the_same_bits_in_any_number(outer: int, inner: int) -> None:
    kernels = SteadyKernels(HeadShape(16, 8, 128, 16, torch.bfloat16))
    weight = torch.randn(outer, inner, device="cuda", dtype=torch.bfloat16)
    linear = kernels.make_linear(weight, None)
    assert isinstance(linear, SteadyLinear) and len(linear.counts) > len(ROW_COUNTS) // 2
    x = torch.randn(9000, inner, device="cuda", dtype=torch.bfloat16)
    whole = linear(x)
    for count in (1, 2, 15, 16, 17, 63, 64, 65, 100, 1000, 4096, 4097):
        assert torch.equal(linear(x[:count]), whole[:count]), count
    torch.testing.assert_close(whole.float(), x.float() @ weight.float().T, rtol=2e-2, atol=2.0)


def test_a_token_of_experts_has_the_same_bits_in_any_number() -> None:
    kernels = SteadyKernels(HeadShape(16, 8, 128, 16, torch.bfloat16))
    made = torch.Generator(device="cuda").manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=made, device="cuda").to(torch.bfloat16)

    ups = [kernels.make_linear(random(1536, 512), None) for _ in range(8)]
    downs = [kernels.make_linear(random(512, 768), None) for _ in range(8)]
    experts = kernels.make_experts(kernels.gate("silu"), ups, downs)
    x, scores = random(3000, 512), random(3000, 2).float()
    chosen = torch.stack([torch.randperm(8, device="cuda")[:2] for _ in range(3000)])
    whole = experts(x, chosen, scores)
    for count in (1, 2, 17, 64, 1000):
        part = slice(500, 500 + count)
        assert torch.equal(experts(x[part], chosen[part], scores[part]), whole[part]), count
    plain = TritonKernels(kernels.shape)
    rows = [[plain.make_linear(one.tensors()[0], None) for one in some] for some in (ups, downs)]
    wanted = EveryExpert(plain.gate("silu"), *rows)(x, chosen, scores)
    assert (whole - wanted).float().norm() < 0.02 * wanted.float().norm()
