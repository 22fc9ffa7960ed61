"""What is decided for models whose layers keep states, and what is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from quire.backends.fp8 import FP8, block_shape
from quire.config import Speculation
from quire.errors import InvalidOption
from quire.executor.memory import block_bytes
from quire.layer_parts.state import DeltaNetPlan
from quire.layer_plan import NormPlan
from quire.options import DeviceFacts, Options, parse_options, resolve
from quire.options.decide import least_block_size
from quire.ranks.shares import RankShare, of_rank
from quire.session.hf_config import config_of
from quire.spec import ModelSpec, plain_decoder
from quire.weights.hf_config import spec_from_hf

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GIB = 1 << 30
CPU = DeviceFacts("cpu", 16 * GIB, 8 * GIB, 2, steady_kernels=True)
# Two KV heads of 256, and 32 states of 128 x 128.
STATE = DeltaNetPlan(32, 16, 128, 128, 4, NormPlan(1e-6))


def spec(state: DeltaNetPlan | None = STATE) -> ModelSpec:
    plain = plain_decoder("x", 96, 64, 128, 4, 16, 2, 256, 4096, 1e-6, 1e4)
    return replace(plain, layers=tuple(replace(one, state=state) for one in plain.layers[:3]))


def test_a_block_is_as_large_as_a_state() -> None:
    wide, narrow = least_block_size(spec(), 4), least_block_size(spec(), 2)
    assert (wide, narrow) == (640, 1152)
    for size, kv_bytes in ((wide, 4), (narrow, 2)):
        kv = 2 * 2 * 256 * kv_bytes  # of a token in one layer
        assert (size - 128) * kv < 4 * STATE.state_numbers <= size * kv
    assert resolve(Options(dtype="float32"), spec(), CPU).block_size == wide
    made = resolve(Options(dtype="bfloat16"), spec(), CPU)
    assert made.block_size == narrow
    assert any(f"block_size {narrow}" in note for note in made.notes)
    gpu = replace(CPU, device="cuda")
    assert resolve(Options(dtype="bfloat16"), spec(), gpu).block_size == narrow
    assert resolve(Options(quantization="int8"), spec(), CPU).block_size == narrow
    # Room for this one is only there with the scales of fp8.
    far = replace(STATE, reach=6)
    small = resolve(Options(dtype="bfloat16", kv_cache_dtype="fp8"), spec(far), gpu).block_size
    per_block = math.prod(block_shape(2, small, 256, FP8)) * FP8.itemsize
    assert 256 * 2 * small < 2 * far.state_numbers <= per_block
    tiny = spec(DeltaNetPlan(2, 2, 8, 8, 4, NormPlan(1e-6)))
    assert resolve(Options(), tiny, CPU).block_size == 16
    assert resolve(Options(block_size=64), tiny, CPU).block_size == 64
    with pytest.raises(InvalidOption, match="at least 640.*state of a layer"):
        resolve(Options(block_size=256, dtype="float32"), spec(), CPU)
    for size in (wide, narrow):  # what a model sets is a size that may be asked for
        asked = parse_options({"block_size": size, "dtype": "float32"})
        assert resolve(asked, spec(), CPU).block_size == size


def test_without_keys_blocks_are_made_for_states_alone() -> None:
    """Of the published model with 2.7 billion weights: no memory is lost to speak of."""
    config = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "n_groups": 1}
    config |= {"hidden_size": 2560, "num_heads": 80, "num_hidden_layers": 2}
    found = spec_from_hf(config)
    (state, _) = found.states
    assert state is not None
    kept = 4 * state.state_numbers
    for dtype, size in (("float32", 128), ("bfloat16", 256)):
        made = resolve(Options(dtype=dtype), found, CPU)
        assert made.block_size == size
        assert any("a state is kept, for texts that begin alike" in note for note in made.notes)
        assert kept <= block_bytes(found, size, DTYPES[dtype]) // 2 <= 1.1 * kept
    gpu, fp8 = replace(CPU, device="cuda"), Options(dtype="bfloat16", kv_cache_dtype="fp8")
    assert resolve(fp8, found, gpu).block_size == 512
    assert not config_of(found).keys() & {"num_attention_heads", "head_dim", "rope_theta"}
    three = [of_rank(found, RankShare(rank, 3)) for rank in range(3)]
    assert max(least_block_size(share, 4) for share in three) == 128


def test_a_block_holds_the_share_of_any_rank() -> None:
    """Two of three ranks have one KV head of two, and one has both with half of the states."""
    four, three = (
        resolve(Options(dtype="float32", tensor_parallel_size=size), spec(), CPU).block_size
        for size in (4, 3)
    )
    assert four == least_block_size(of_rank(spec(), RankShare(0, 4)), 4) == 384
    parts = [of_rank(spec(), RankShare(rank, 3)) for rank in range(3)]
    assert three == max(least_block_size(part, 4) for part in parts)
    assert len({least_block_size(part, 4) for part in parts}) > 1


def test_bits_are_steady_where_those_of_others_are_and_nothing_is_guessed() -> None:
    plain = resolve(Options(dtype="float32"), spec(None), CPU)
    assert plain.batch_invariant and plain.speculation is not None
    made = resolve(Options(dtype="float32"), spec(), CPU)
    assert made.batch_invariant and made.speculation is None
    assert not resolve(Options(dtype="bfloat16"), spec(), CPU).batch_invariant
    asked = Options(dtype="bfloat16", batch_invariant=True)
    assert resolve(asked, spec(), CPU).batch_invariant
    guessing = Options(dtype="float32", speculative_config=Speculation(4, 2, 3))
    made = resolve(guessing, spec(), CPU)
    assert made.speculation is None
    assert any("cannot go back" in note for note in made.notes)
