"""What is decided follows from the options, the model and the facts of the device."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import InvalidOption
from quire.options import DeviceFacts, Options, parse_options, resolve
from quire.spec import ModelSpec
from tests.specs import small_spec

GIB = 1 << 30


def spec(**changes: Any) -> ModelSpec:
    facts = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "hidden_size": 8}
    facts |= {"intermediate_size": 16, "max_model_len": 2048}
    return small_spec(**{**facts, "dtype": "bfloat16", **changes})


def cpu(*fast: str) -> DeviceFacts:
    return DeviceFacts("cpu", 16 * GIB, 8 * GIB, 2, fast)


def gpu(gib: int, *fast: str) -> DeviceFacts:
    return DeviceFacts("cuda", gib * GIB, gib * GIB, 16, fast)


@pytest.mark.parametrize(
    ("facts", "tokens", "seqs"),
    [(cpu(), 1024, 256), (gpu(24, "bfloat16"), 8192, 256), (gpu(80, "bfloat16"), 16384, 2048)],
)
def test_defaults_follow_the_device(facts: DeviceFacts, tokens: int, seqs: int) -> None:
    config = resolve(Options(), spec(), facts)
    on_gpu = facts.device == "cuda"
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (tokens, seqs)
    assert (config.depth, config.max_repeat) == ((2, 32) if on_gpu else (1, 1))
    assert (config.block_size, config.max_wait, config.batch_invariant) == (16, 60.0, False)
    assert config.enable_prefix_caching and config.max_model_len == 2048
    assert config.gpu_memory_utilization == 0.92


@pytest.mark.parametrize(
    ("facts", "stored", "chosen"),
    [
        (cpu(), "bfloat16", "float32"),
        (cpu("float16"), "bfloat16", "float32"),
        (cpu("bfloat16"), "bfloat16", "bfloat16"),
        (cpu("bfloat16"), "float32", "bfloat16"),
        (cpu("bfloat16"), "float16", "bfloat16"),
        (cpu("bfloat16", "float16"), "float16", "float16"),
        (cpu(), "float16", "float32"),
        (gpu(80, "bfloat16", "float16"), "bfloat16", "bfloat16"),
        (gpu(80, "bfloat16", "float16"), "float16", "float16"),
        (gpu(80, "bfloat16", "float16"), "float32", "bfloat16"),
        (gpu(16, "float16"), "bfloat16", "float16"),
    ],
)
def test_the_dtype_is_chosen_and_said(facts: DeviceFacts, stored: str, chosen: str) -> None:
    config = resolve(Options(), spec(dtype=stored), facts)
    assert config.dtype == chosen
    assert any(note.startswith(f"dtype {chosen}") for note in config.notes)


@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_an_explicit_dtype_is_taken_without_a_word(wanted: str) -> None:
    config = resolve(Options(dtype=wanted), spec(), cpu("bfloat16"))
    assert config.dtype == wanted and config.notes == ()


def test_a_length_beyond_the_models_names_the_limit() -> None:
    assert resolve(Options(max_model_len=100), spec(), cpu()).max_model_len == 100
    with pytest.raises(InvalidOption, match="2048"):
        resolve(Options(max_model_len=2049), spec(), cpu())


@pytest.mark.parametrize(
    ("seqs", "tokens", "expected"),
    [
        (None, 7, (7, 7)),
        (100, 7, (7, 7)),
        (4, 7, (4, 7)),
        (5000, None, (5000, 5000)),
        (5000, 6000, (5000, 6000)),
    ],
)
def test_every_row_can_move_in_one_step(
    seqs: int | None, tokens: int | None, expected: tuple[int, int]
) -> None:
    options = Options(max_num_seqs=seqs, max_num_batched_tokens=tokens, dtype="float32")
    config = resolve(options, spec(), cpu())
    assert (config.max_num_seqs, config.max_num_batched_tokens) == expected
    assert bool(config.notes) == (expected == (7, 7))


def test_overlap_follows_async_scheduling() -> None:
    depths = {
        asked: [
            resolve(Options(async_scheduling=asked), spec(), f).depth
            for f in (cpu(), gpu(80, "bfloat16"))
        ]
        for asked in (None, True, False)
    }
    assert depths == {None: [1, 2], True: [2, 2], False: [1, 1]}


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="cpu"):
        resolve(Options(device="cuda"), spec(), cpu())
    assert resolve(Options(device="cpu"), spec(), cpu()).device == "cpu"


def test_what_was_asked_for_reaches_the_config() -> None:
    given = {
        "seed": 5,
        "block_size": 8,
        "num_gpu_blocks_override": 12,
        "batch_invariant": True,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 4096,
        "max_logprobs": 5,
        "logprobs_mode": "raw_logits",
        "load_format": "dummy",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "trust_remote_code": True,
        "kv_cache_dtype": "half",
        "gpu_memory_utilization": 0.5,
    }
    config = resolve(parse_options(given), spec(), cpu())
    assert config.num_blocks == 12 and config.kv_cache_dtype == "float16"
    same = set(given) - {"num_gpu_blocks_override", "kv_cache_dtype"}
    assert {name: getattr(config, name) for name in same} == {name: given[name] for name in same}
