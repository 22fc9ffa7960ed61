"""Specs as plain data, as other ranks are sent them: of every family, and every class of a plan."""

from __future__ import annotations

import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

import pytest

from quire import layer_parts
from quire.executor import plain_data
from quire.executor.plain_data import from_json, to_json
from tests.ranks.test_shares import CONFIGS, spec_of

PARTS = [f"quire.layer_parts.{one.name}" for one in pkgutil.iter_modules(layer_parts.__path__)]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_spec_of_a_family_goes_to_another_process_and_is_the_same_there(name: str) -> None:
    made = spec_of(CONFIGS[name])
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize("module", [*PARTS, "quire.layer_plan", "quire.spec"])
def test_every_class_of_a_plan_can_be_sent(module: str) -> None:
    """Also one that no tiny model has."""
    found = [one for one in vars(import_module(module)).values() if isinstance(one, type)]
    classes = [one for one in found if one.__module__ == module and is_dataclass(one)]
    assert classes
    assert not [one for one in classes if plain_data._CLASSES.get(one.__name__) is not one]
