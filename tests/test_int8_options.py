"""When a model is computed in 8 bits, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.config import EngineConfig
from quire.errors import NotSupported
from quire.options import DeviceFacts, WeightFacts, parse_options, resolve
from tests.specs import small_spec

SPEC = small_spec()


def decided(
    *, fits: str = "", steady: bool = True, device: str = "cpu", **options: object
) -> EngineConfig:
    facts = DeviceFacts(device, 1 << 34, 1 << 33, 2, ("bfloat16",), steady_kernels=steady)
    return resolve(parse_options(options), SPEC, facts, WeightFacts(int8_fits=fits))


def test_what_fits_is_taken_and_said() -> None:
    config = decided(fits="3 times as fast")
    assert (config.quantization, config.dtype) == ("int8", "float32")
    assert config.batch_invariant and config.prefix_groups
    assert any("3 times as fast" in line and "quantization='none'" in line for line in config.notes)


def test_what_does_not_fit_is_computed_in_floats() -> None:
    config = decided()
    assert (config.quantization, config.dtype) == (None, "bfloat16")
    assert not config.batch_invariant


@pytest.mark.parametrize("options", [{"quantization": "none"}, {"dtype": "float32"}])
def test_whoever_asks_for_floats_gets_them(options: dict[str, str]) -> None:
    assert decided(fits="3 times as fast", **options).quantization is None


def test_it_can_be_asked_for_where_it_would_not_be_chosen() -> None:
    config = decided(quantization="int8", steady=False)
    assert (config.quantization, config.dtype) == ("int8", "float32")
    assert not config.batch_invariant  # attention would cost more
    assert decided(quantization="int8", dtype="float32").quantization == "int8"


def test_prefixes_are_read_once_unless_that_would_change_bits() -> None:
    assert not decided(steady=False, batch_invariant=True).prefix_groups
    assert decided(steady=False).prefix_groups
    assert decided(dtype="float32").batch_invariant
    assert not decided(dtype="float32", batch_invariant=False).batch_invariant


@pytest.mark.parametrize(
    ("options", "device"), [({}, "cuda"), ({"dtype": "bfloat16"}, "cpu")], ids=["GPU", "bfloat16"]
)
def test_what_is_not_built_is_refused_with_the_way_out(
    options: dict[str, str], device: str
) -> None:
    with pytest.raises(NotSupported, match="Leave"):
        decided(quantization="int8", device=device, **options)


@pytest.mark.parametrize(
    ("device", "options", "kept"),
    [
        ("cuda", {"quantization": "awq"}, "awq"),
        ("cuda", {"quantization": "awq", "dtype": "float32"}, None),
        ("cuda", {"quantization": "none"}, None),
        ("cuda", {}, None),
        ("cpu", {"quantization": "awq"}, None),
    ],
)
def test_weights_stay_quantised_where_that_is_asked_of_a_gpu(
    device: str, options: dict[str, str], kept: str | None
) -> None:
    facts = DeviceFacts(device, 1 << 34, 1 << 33, 2, ("bfloat16",))
    config = resolve(parse_options(options), SPEC, facts, WeightFacts("awq"))
    assert config.quantization == kept
    said = any("dequantised when they are loaded" in line for line in config.notes)
    assert said == (kept is None and options.get("quantization") != "none")


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, "fp8"),
        ({"dtype": "float16"}, "fp8"),
        ({"dtype": "float32"}, None),
        ({"batch_invariant": True}, None),
        ({"tensor_parallel_size": 2}, None),
        ({"enable_lora": True}, None),
        ({"quantization": "none"}, None),
    ],
)
def test_fp8_stays_so_unasked_where_it_is_fast(options: dict[str, Any], kept: str | None) -> None:
    hopper = DeviceFacts("cuda", 1 << 34, 1 << 33, 2, ("bfloat16",), fast_quantised=True)
    config = resolve(parse_options(options), SPEC, hopper, WeightFacts("fp8", "fp8"))
    assert config.quantization == kept
    said = any("stay in fp8" in line for line in config.notes)
    assert said == (kept == "fp8")


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, "awq"), ({"batch_invariant": True}, None), ({"dtype": "half"}, "awq")],
)
def test_codes_of_4_bits_stay_so_unasked(options: dict[str, Any], kept: str | None) -> None:
    hopper = DeviceFacts("cuda", 1 << 34, 1 << 33, 2, ("bfloat16",), fast_quantised=True)
    config = resolve(parse_options(options), SPEC, hopper, WeightFacts("awq", "4 bits"))
    assert config.quantization == kept
    assert any("stay in 4 bits" in line for line in config.notes) == (kept == "awq")


def test_what_is_not_known_to_be_fast_is_dequantised() -> None:
    older = DeviceFacts("cuda", 1 << 34, 1 << 33, 2, ("bfloat16",))
    hopper = replace(older, fast_quantised=True)
    for facts, kept_as in ((older, "fp8"), (older, "4 bits"), (hopper, "")):
        config = resolve(parse_options({}), SPEC, facts, WeightFacts("fp8", kept_as))
        assert config.quantization is None


def test_quantised_products_do_not_promise_the_same_bits_in_any_batch() -> None:
    with pytest.raises(NotSupported, match="another order for another batch size"):
        decided(device="cuda", quantization="awq", batch_invariant=True)
    assert decided(device="cuda", batch_invariant=True).quantization is None
