"""The small parts of the CUDA executor, each by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.backends.fp8 import MOST_WIDENED
from quire.backends.pieces import most_pieces
from quire.config import EngineConfig
from quire.errors import NotEnoughMemory
from quire.executor.cuda.device_rows import needs_sampler
from quire.executor.cuda.graphs import buckets
from quire.executor.cuda.memory import num_cuda_blocks, step_bytes
from quire.executor.cuda.prompts import NOTHING_CAPTURED, Captured
from quire.executor.cuda.upload import Upload
from quire.executor.memory import block_bytes, longest_sequence
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import MlpPlan, SparsePlan
from quire.params.row_sampling import MOST_SPELLED, RowSampling
from quire.sampling_params import SamplingParams
from quire.step import Slice
from tests.executor.cuda.test_runner import SPEC
from tests.executor.harness import ints, row_start
from tests.specs import changed, small_config

GIB = 1 << 30


def test_a_parcel_carries_integers_and_floats() -> None:
    upload = Upload(torch.device("cpu"))
    upload.add("one", np.array([7], np.int32))
    upload.add("none", [])
    upload.add("floats", np.array([0.95, -np.inf]))
    upload.add("matrix", np.array([[1, 2], [3, 4]]).T)
    upload.send()
    assert upload.take("one").tolist() == [7]
    assert upload.take("none").tolist() == []
    assert upload.take("floats").tolist() == [0.95, -np.inf]
    assert upload.take("matrix").tolist() == [1, 3, 2, 4]
    first = upload.take("one").data_ptr()
    assert all((upload.take(n).data_ptr() - first) % 16 == 0 for n in ("floats", "matrix"))


@pytest.mark.parametrize("max_rows", [1, 3, 32, 256, 300, 1024])
def test_every_number_of_rows_has_a_bucket(max_rows: int) -> None:
    sizes = buckets(max_rows)
    assert sizes[-1] == max_rows
    assert list(sizes) == sorted(set(sizes))
    for num_rows in range(33, max_rows):
        assert next(s for s in sizes if s >= num_rows) <= max(num_rows + 32, num_rows * 1.5)


def test_large_models_capture_no_large_passes() -> None:
    small = changed(SPEC, num_layers=28, hidden_size=1024, intermediate_size=3072, num_heads=16)
    large = changed(SPEC, num_layers=32, hidden_size=4096, intermediate_size=14336, num_heads=32)
    assert Captured.of(changed(small, num_kv_heads=8, head_dim=128)).num_tokens > 16384
    assert 512 < Captured.of(changed(large, num_kv_heads=8, head_dim=128)).num_tokens < 4096


def test_long_slices_with_much_attention_are_not_captured() -> None:
    """They have faster kernels where nothing is; short ones behind the same past have not."""
    spec = changed(SPEC, num_layers=28, hidden_size=1024, intermediate_size=3072, num_heads=16)
    captured = Captured.of(changed(spec, num_kv_heads=8, head_dim=128))

    def slices(*sizes: tuple[int, int]) -> list[Slice]:
        return [Slice(i, past, np.zeros(n, np.int32), (i,)) for i, (n, past) in enumerate(sizes)]

    assert slices(*[(1024, 0)] * 16) in captured
    assert slices(*[(98, 2000)] * 160) in captured
    assert slices((16_384, 0)) not in captured
    assert slices((4096, 12_288), (12_288, 0)) not in captured
    assert slices(*[(1024, 0)] * 16) not in NOTHING_CAPTURED


def test_room_is_left_for_what_attention_makes_in_pieces() -> None:
    few, many = (small_config(max_model_len=n, batch_invariant=True) for n in (512, 40_000))
    off = small_config(max_model_len=40_000)
    each = SPEC.num_heads * SPEC.head_dim * 4 * few.max_num_seqs
    sizes = [step_bytes(one, SPEC, torch.bfloat16) for one in (few, many, off)]
    assert sizes[1] - sizes[0] == (most_pieces(40_000) - 1) * each
    assert sizes[2] - sizes[0] == 3 * each


@pytest.mark.parametrize("max_model_len", [256, 10_000_000, 2_000_000_000])
def test_the_pool_leaves_room_for_steps_positions_and_others(max_model_len: int) -> None:
    config = small_config(device="cuda", num_blocks=None, gpu_memory_utilization=0.75)
    config = replace(config, max_model_len=max_model_len)
    needed = step_bytes(config, SPEC, torch.bfloat16)
    count = num_cuda_blocks(config, SPEC, torch.bfloat16, free=60 * GIB, total=80 * GIB)
    size = block_bytes(SPEC, config.block_size, torch.bfloat16)
    # As many positions as a sequence can have: cos and sin in float32, and its list of blocks.
    longest = longest_sequence(config, count)
    assert longest == min(max_model_len, count * config.block_size)
    entry = config.block_size * SPEC.head_dim * 4 + 2 * 4 * (config.max_num_seqs + 1)
    tables = -(-longest // config.block_size) * entry
    assert 0 <= 60 * GIB - 20 * GIB - needed - count * size - tables < size + entry


def test_what_others_have_is_not_taken_off_an_engines_share() -> None:
    """The second of two engines that may have 0.4 each gets as much as the first."""
    config = small_config(device="cuda", num_blocks=None, gpu_memory_utilization=0.4)

    def blocks(config: EngineConfig, free: int) -> int:
        return num_cuda_blocks(config, SPEC, torch.bfloat16, free=free * GIB, total=100 * GIB)

    alone = blocks(config, 98)
    assert blocks(replace(config, memory_taken=40 * GIB), 58) == alone
    # Others gave back what they had: it is not ours for that.
    size = block_bytes(SPEC, config.block_size, torch.bfloat16)
    assert 39 * GIB < blocks(replace(config, memory_taken=90 * GIB), 98) * size < 40 * GIB
    # Less is left of a GPU that is nearly full, and all of it to an engine that asks for it.
    full = replace(config, memory_taken=80 * GIB)
    assert 0 < blocks(full, 18) < alone // 2
    wanted, asked = (replace(full, gpu_memory_utilization=share) for share in (0.92, 1.0))
    assert blocks(full, 18) == blocks(wanted, 18) < blocks(asked, 18)


def test_rows_that_draw_by_masks_are_counted() -> None:
    """Their logits wait for the masks in room of their own, [rows, vocab], beside the bit lines."""

    def needed(vocab: int) -> int:
        config = replace(small_config(device="cuda", num_blocks=None), max_num_seqs=1024)
        return step_bytes(config, changed(SPEC, vocab_size=vocab), torch.bfloat16)

    rows, more = 1024, 32_000
    logits, lines = 2 * rows * more, 4 * rows * more // 32
    edited = 4 * 256 * more  # lines that are edited are copied in float32
    assert needed(64_000) - needed(32_000) >= 5 * logits + lines + edited


def test_what_passes_widen_of_a_cache_in_fp8_is_counted() -> None:
    """Keys and values of so many tokens, eager and captured."""
    wide = small_config(device="cuda", dtype="bfloat16", enforce_eager=False)
    narrow = replace(wide, kv_cache_dtype="fp8")
    needed = [step_bytes(one, SPEC, torch.bfloat16) for one in (wide, narrow)]
    both = 2 * SPEC.num_kv_heads * SPEC.head_dim * torch.bfloat16.itemsize
    assert needed[1] - needed[0] == 2 * MOST_WIDENED * both


def test_streams_and_cutoffs_are_counted() -> None:
    """Three more streams, each with its norms; and a cutoff of gates, which is found in float32."""
    config = small_config(device="cuda", enforce_eager=True)
    sparse = MlpPlan(4096, sparse=SparsePlan(0.5, 4096))
    layers = tuple(replace(one, mlp=MlpPlan(4096)) for one in SPEC.layers)
    plain = replace(SPEC, layers=layers)
    several = replace(plain, streams=StreamsPlan(4, 0, 8))
    cut = replace(plain, layers=(replace(layers[0], mlp=sparse), *layers[1:]))
    needed = [step_bytes(config, one, torch.bfloat16) for one in (plain, several, cut)]
    tokens = config.max_num_batched_tokens
    assert needed[1] - needed[0] == tokens * 3 * 3 * SPEC.hidden_size * 2
    assert needed[2] - needed[0] == tokens * 2 * 3 * 4096 * 2


def test_the_pools_size_can_be_given() -> None:
    size = block_bytes(SPEC, 4, torch.bfloat16)
    given = small_config(num_blocks=None, kv_cache_memory_bytes=10 * size + 1)
    assert num_cuda_blocks(given, SPEC, torch.bfloat16, free=0, total=GIB) == 10
    assert num_cuda_blocks(small_config(num_blocks=7), SPEC, torch.bfloat16, free=0, total=1) == 7


def test_no_room_for_a_block_is_an_error_with_numbers() -> None:
    config = small_config(num_blocks=None, gpu_memory_utilization=0.9)
    with pytest.raises(NotEnoughMemory, match=r"1\.000 GiB free of 80\.000 GiB"):
        num_cuda_blocks(config, SPEC, torch.bfloat16, free=GIB, total=80 * GIB)


@pytest.mark.parametrize(
    ("params", "stop_ids", "special"),
    [
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3}, (2,), False),
        ({"temperature": 0.0, "stop_token_ids": [4]}, (4,), False),
        ({"min_tokens": 3}, (), False),
        ({"min_tokens": 3}, (2,), False),
        ({"presence_penalty": 0.1}, (), False),
        ({"logprobs": 0}, (), False),
        ({"logprobs": 20}, (), False),
        ({"logprobs": 21}, (), False),
        ({"logprobs": -1}, (), False),
        ({"logprob_token_ids": [3]}, (), False),
        ({"prompt_logprobs": 1}, (), False),
        ({"logit_bias": {1: 2.0}}, (), False),
        ({"allowed_token_ids": [1]}, (), False),
        ({"bad_words": ["x"]}, (), False),
        ({"bad_words": ["several"]}, (), False),
        ({"bad_words": ["too many"]}, (), True),
    ],
)
def test_rows_that_need_the_sampler_are_known(
    params: dict[str, object], stop_ids: tuple[int, ...], special: bool
) -> None:
    given = SamplingParams(**params)  # type: ignore[arg-type]
    sizes = {"x": 1, "several": MOST_SPELLED, "too many": MOST_SPELLED + 1}
    given._bad_words_token_ids = [[7] * sizes[word] for word in given.bad_words or ()]
    sampling = RowSampling.of(given)
    start = row_start(0, [1], sampling=sampling, stop_ids=ints(*stop_ids))
    assert needs_sampler(start) is special
