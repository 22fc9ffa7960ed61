"""Layers in groups of KV: every layer once, those that see everything first, blocks of one size."""

from __future__ import annotations

import random

import pytest
import torch

from quire.executor import memory
from quire.executor.cpu.local import LocalExecutor
from quire.layers.kv_groups import BlockTables, KVGroup, kv_groups
from quire.weights.load import dummy_weights
from tests.executor.test_invariance import spec_of
from tests.specs import small_config


def gemma(num_layers: int) -> list[int | None]:
    """Five layers with a window, then one without."""
    return [None if i % 6 == 5 else 512 for i in range(num_layers)]


def test_the_example_of_its_docstring() -> None:
    assert kv_groups((8, 8, None, 8, 8, None), 100) == (
        KVGroup((2, 5)),
        KVGroup((0, 1), 8),
        KVGroup((3, 4), 8),
    )


def test_a_model_of_one_kind_has_one_group() -> None:
    assert kv_groups((None,) * 32, 4096) == (KVGroup(tuple(range(32))),)
    assert kv_groups((512,) * 32, 4096) == (KVGroup(tuple(range(32)), 512),)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert kv_groups((None, 4096), 4096) == (KVGroup((0, 1)),)
    assert len(kv_groups((None, 4096), 4097)) == 2


def test_layers_that_keep_states_are_groups_of_their_own() -> None:
    """They come last, in groups as large as those that attend, with a window of two tokens."""
    states = (True, True, True, False) * 2
    assert kv_groups((None,) * 8, 4096, states) == (
        KVGroup((3, 7)),
        KVGroup((0, 1), 2, is_state=True),
        KVGroup((2, 4), 2, is_state=True),
        KVGroup((5, 6), 2, is_state=True),
    )
    assert kv_groups((2, None), 4096, (False, True)) == (
        KVGroup((0,), 2),
        KVGroup((1,), 2, is_state=True),
    )


@pytest.mark.parametrize(
    ("num_layers", "num_tables", "num_empty"), [(18, 6, 0), (26, 7, 2), (34, 7, 1), (48, 6, 0)]
)
def test_few_tables_and_few_empty_places(num_layers: int, num_tables: int, num_empty: int) -> None:
    groups = kv_groups(gemma(num_layers), 32768)
    assert len(groups) == num_tables
    assert memory.places_in_block(groups) * num_tables - num_layers == num_empty


def test_every_layer_is_in_one_group_of_its_window() -> None:
    rng = random.Random(0)
    for _ in range(200):
        windows = [rng.choice([None, 8, 16]) for _ in range(rng.randint(1, 40))]
        groups = kv_groups(windows, 100)
        assert sorted(i for group in groups for i in group.layers) == list(range(len(windows)))
        assert all(windows[i] == group.window for group in groups for i in group.layers)
        seen = [group.window for group in groups]
        assert seen == sorted(seen, key=lambda window: (window is not None, window or 0))


def test_each_layer_has_its_own_memory_under_its_group() -> None:
    groups = kv_groups((8, 8, None, 8, 8, None), 100)
    cache = torch.arange(2.0)[:, None, None].expand(2, 2, 5)
    places = [int(part[0, 0]) for part in memory.caches_by_layer(cache, groups)]
    assert places == [0, 1, 0, 0, 1, 1]


def test_the_same_memory_holds_longer_sequences_with_windows() -> None:
    """Four layers of six with a window of 12: at most five blocks of four tokens each."""
    found = {}
    for windows in ((None,) * 6, (12, 12, None) * 2):
        spec = spec_of(num_layers=6, windows=windows, max_model_len=2048)
        size = memory.block_bytes(spec, 4, torch.float32)
        config = small_config(num_blocks=None, kv_cache_memory_bytes=100 * size, max_model_len=2048)
        weights = dummy_weights(spec, dtype=torch.float32, device="cpu")
        executor = LocalExecutor(config, spec, weights)
        facts = executor.start()
        assert executor._runner is not None
        # One block more is nobody's, where layers have windows.
        part = memory.block_bytes(spec, 4, torch.float32, memory.groups_of(config, spec))
        assert executor._runner.cache.nbytes <= 100 * size + (part if part < size else 0)
        found[windows] = facts.most_tokens(4, 2048)
        executor.close()
    assert found[(None,) * 6] == 400
    assert found[(12, 12, None) * 2] > 1100


def test_layers_without_keys_of_their_own_use_those_of_others() -> None:
    """The second of two layers in a place is read by the fourth, that without a window by the
    last."""
    heads = ((1, 16), (1, 16), (1, 32), (1, 16), (1, 32))
    full, windowed = kv_groups(
        (8, 8, None, 8, None), 100, heads=heads, sources=(None, None, None, 1, 2)
    )
    assert (full.layers, full.readers) == ((2,), ((4, 0),))
    assert (windowed.layers, windowed.readers) == ((0, 1), ((3, 1),))
    tables = BlockTables.of((full, windowed))
    assert [tables.table_of(1, index) for _, index in windowed.members] == [1, 2, 2]
