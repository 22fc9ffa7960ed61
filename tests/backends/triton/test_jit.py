"""A kernel is found on disk by a key: equal in every process, other when any part of it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# The keys of all kernels and parts, and which parts call what is defined after them.
KEYS = """
import importlib, json, pathlib, sys
from triton.runtime.jit import JITFunction
import quire.backends.triton as room

order = reversed if "reversed" in sys.argv else list
names = sorted(path.stem for path in pathlib.Path(room.__file__).parent.glob("[!_]*.py"))
found = {}
for name in order(names):
    held = vars(importlib.import_module(f"quire.backends.triton.{name}")).values()
    held = [one for one in held if isinstance(one, JITFunction)]
    found |= {f"{one.__module__}.{one.__name__}": one for one in held}
known = {one.__name__ for one in found.values() if one.hash is not None}
keys = {name: found[name].cache_key for name in order(sorted(found))}
late = []
for name, one in found.items():
    for called in map(one.__globals__.get, one.fn.__code__.co_names):
        if isinstance(called, JITFunction) and called.__module__ == one.__module__:
            if one.__name__ in known and called.starting_line_number > one.starting_line_number:
                late.append(f"{name} calls {called.__name__}")
print(json.dumps({"keys": keys, "late": late, "known": sorted(known)}))
"""


def told(*words: str) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", KEYS, *words],
        cwd=ROOT,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not run.returncode, run.stderr[-3000:]
    made: dict[str, Any] = json.loads(run.stdout)
    return made


@pytest.fixture(scope="module")
def forwards() -> dict[str, Any]:
    return told()


def test_keys_do_not_depend_on_what_was_asked_for_first(forwards: dict[str, Any]) -> None:
    backwards = told("reversed")["keys"]
    assert len(backwards) > 40
    assert {name for name, key in backwards.items() if key != forwards["keys"][name]} == set()


def test_a_part_comes_after_the_parts_that_it_calls(forwards: dict[str, Any]) -> None:
    """Its key is made when it is defined: what comes after it would not be in it."""
    assert len(forwards["known"]) > 30, "parts know their keys from the beginning"
    assert forwards["late"] == []
