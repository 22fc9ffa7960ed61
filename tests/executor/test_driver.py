"""What the driver says of a GPU, and that it may have nothing to say."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from quire.executor import driver
from quire.executor.driver import Gpu, fast_on, first_gpu

H200 = {75: 9, 76: 0, 97: 232448}


def answers(*, broken: str = "") -> SimpleNamespace:
    """A driver of one H200, of which one function fails."""

    def attribute(value: Any, number: int, device: Any) -> int:
        value._obj.value = H200[number]
        return int(broken == "attribute")

    def memory(size: Any, device: Any) -> int:
        size._obj.value = 150 << 30
        return int(broken == "memory")

    return SimpleNamespace(
        cuInit=lambda flags: 100 if broken == "init" else 0,
        cuDeviceGet=lambda device, number: int(broken == "device"),
        cuDeviceGetAttribute=attribute,
        cuDeviceTotalMem_v2=memory,
    )


def test_the_first_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: answers())
    found = first_gpu()
    assert found == Gpu((9, 0), 150 << 30, 232448)
    facts = found.facts()
    assert (facts.device, facts.fast_dtypes) == ("cuda", ("bfloat16", "float16"))
    assert facts.memory_total == 150 << 30


@pytest.mark.parametrize("broken", ["init", "device", "attribute", "memory"])
def test_a_driver_that_fails_has_no_gpu(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: answers(broken=broken))
    assert first_gpu() is None


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "DRIVER", "libnobody-has-this.so.1")
    assert first_gpu() is None


@pytest.mark.parametrize(
    ("major", "fast"), [(6, ()), (7, ("float16",)), (8, ("bfloat16", "float16"))]
)
def test_formats_are_fast_where_tensor_cores_know_them(major: int, fast: tuple[str, ...]) -> None:
    assert fast_on(major) == fast
