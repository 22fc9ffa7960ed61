"""What single fields of a config say."""

from __future__ import annotations

import pytest

from quire.errors import CorruptModel
from quire.families.fields import Fields


def test_an_end_of_minus_one_is_none() -> None:
    assert Fields({"eos_token_id": -1}, "it").ids("eos_token_id") == ()
    assert Fields({"eos_token_id": [2, -1]}, "it").ids("eos_token_id") == (2,)
    with pytest.raises(CorruptModel, match="eos_token_id"):
        Fields({"eos_token_id": -2}, "it").ids("eos_token_id")
