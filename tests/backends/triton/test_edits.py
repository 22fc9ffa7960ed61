"""Drawing from edited logits on the device gives the sampler's tokens, step after step."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.checks import Place
from tests.backends.triton.edit_checks import check_ahead, check_edits
from tests.backends.triton.places import GPU_DTYPES, small_places

# The interpreter is numpy, which speaks up where a device goes on with inf and NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("vocab", [23, 5000])
def test_every_edit_at_once(place: Place, vocab: int) -> None:
    check_edits(place, vocab, num_rows=7, steps=4, seed=vocab)


@pytest.mark.parametrize("place", small_places())
def test_what_rows_draw_ahead_of_masks_is_what_any_mask_gives_them(place: Place) -> None:
    check_ahead(place, 300, num_rows=40, num_masks=12, seed=4)


def test_more_lines_than_are_edited_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place: Place = small_places()[-1].values[0]  # type: ignore[attr-defined]
    monkeypatch.setattr("quire.backends.triton.edit.MOST_LINES", 3)
    check_edits(place, 40, num_rows=7, steps=2, seed=2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_edits_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    check_edits(place, 49_152, num_rows=300, steps=4, seed=1)
    check_ahead(place, 49_152, num_rows=300, num_masks=8, seed=1)
