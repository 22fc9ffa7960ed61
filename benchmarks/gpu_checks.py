"""The CUDA executor's tests as plain functions, for machines without pytest."""

from __future__ import annotations

import itertools
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.budget import Budget


def calls_of(test: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A test function with each set of the arguments its marks name."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = [names] if isinstance(names, str) else list(names)
            axes.append(
                [dict(zip(names, v if len(names) > 1 else [v], strict=True)) for v in values]
            )
    for number, chosen in enumerate(itertools.product(*axes)):
        arguments = {name: value for part in chosen for name, value in part.items()}
        yield f"{test.__name__}[{number}]", arguments


def stand_in_for_pytest() -> None:
    """Enough of pytest to import the tests where it is not installed."""
    from types import ModuleType, SimpleNamespace

    @contextmanager
    def raises(kind: type[Exception], match: str = "") -> Iterator[None]:
        try:
            yield
        except kind as error:
            if not re.search(match, str(error)):
                raise AssertionError(f"{match!r} is not in {error}") from error
        else:
            raise AssertionError(f"no {kind.__name__} was raised")

    def parametrize(names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        def marked(test: Any) -> Any:
            mark = SimpleNamespace(name="parametrize", args=(names, values))
            test.pytestmark = [*getattr(test, "pytestmark", []), mark]
            return test

        return marked

    module: Any = ModuleType("pytest")
    module.mark = SimpleNamespace(parametrize=parametrize, gpu=None)
    module.raises = raises
    sys.modules["pytest"] = module


def check(budget: Budget, only: Sequence[str]) -> None:
    """Run the GPU tests as plain functions; print what fails and go on."""
    try:
        import pytest  # noqa: F401
    except ImportError:
        stand_in_for_pytest()
    from tests.executor.cuda import test_gpu, test_gpu_sleep, test_gpu_windows

    results = {}
    all_of_them = {**vars(test_gpu), **vars(test_gpu_sleep), **vars(test_gpu_windows)}
    tests = [t for name, t in all_of_them.items() if name.startswith("test_")]
    if only:
        tests = [t for t in tests if any(word in t.__name__ for word in only)]
    for test in tests:
        for name, arguments in calls_of(test):
            if budget.left < 5:
                results[name] = "not run"
                continue
            started = time.perf_counter()
            try:
                test(**arguments)
                results[name] = "ok"
            except Exception:  # noqa: BLE001 - a failing check must not keep the others from running
                results[name] = traceback.format_exc()
                print(results[name][-3000:], flush=True)
            print(
                f"{name}: {results[name][:20]!r} {time.perf_counter() - started:.1f} s", flush=True
            )
            budget.write("check", results)
