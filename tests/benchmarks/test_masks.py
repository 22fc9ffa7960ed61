from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.masks import Bench, cases, measure, opened_tokenizer
from quire.scheduler.stopping import accept_each


def test_rows_that_go_on_together_or_one_by_one_draw_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(*opened_tokenizer(Namespace(vocabulary=1000)))
    try:
        together = measure(bench, "all", cases()["half plain"], rows=24, steps=12)
        monkeypatch.setattr(bench.guides, "accept_all", accept_each)
        alone = measure(bench, "all", cases()["half plain"], rows=24, steps=12)
    finally:
        bench.guides.close()
    assert together.digest == alone.digest
    assert together.masks > 0
