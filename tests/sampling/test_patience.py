"""How long rows that are ready wait for the processors of others."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from quire.sampling import holding
from quire.sampling.holding import LOOKS_AGAIN, MOST_PATIENCE, Patience


def test_each_draw_has_its_own_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(holding, "time", SimpleNamespace(perf_counter=lambda: now))
    patience = Patience(now - 0.4, beside_others=True)
    for _ in range(2):
        patience.begin()
        assert 0.0 < patience.left() <= 0.05
        now += 0.05
        assert patience.left() <= 0.0


def test_waiting_beside_a_busy_device_is_free() -> None:
    busy = True
    patience = Patience(time.perf_counter() - 9.0, beside_others=False, is_free=lambda: busy)
    patience.begin()
    time.sleep(0.01)
    assert patience.left() == LOOKS_AGAIN
    busy = False
    assert LOOKS_AGAIN < patience.left() <= MOST_PATIENCE * 1.001
