"""What Phi-3's configs say that others do not."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_parts.rope import FactorRope
from quire.weights.hf_config import spec_from_hf
from tests.weights.test_hf_config import family

LONG: dict[str, Any] = {"short_factor": [1.5] * 6, "long_factor": [3.0] * 6}
PARTIAL: dict[str, Any] = {"partial_rotary_factor": 0.75, "max_position_embeddings": 8192}


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_three_words_mean_longrope_up_to_the_original_length(kind: str) -> None:
    spec = spec_from_hf(family("phi3", rope_scaling={**LONG, "type": kind}, **PARTIAL))
    assert isinstance(spec.rope.scaling, FactorRope)
    assert spec.rope.scaling.factors == (1.5,) * 6
    assert spec.max_model_len == 4096
    assert spec.layers[0].attention.rope.dims == 12


def test_a_scaling_that_is_taken_away_leaves_what_is_turned() -> None:
    rope = {**LONG, "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    config = family("phi3", rope_parameters=rope, max_position_embeddings=8192)
    plain = spec_from_hf(config, {"rope_scaling": None})
    assert (plain.rope.scaling, plain.rope.dims) == (None, 12)


def test_a_window_longer_than_any_text_is_none() -> None:
    assert spec_from_hf(family("phi3", sliding_window=512)).windows == (None,) * 4
    assert spec_from_hf(family("phi3", sliding_window=511)).windows == (511,) * 4
    assert spec_from_hf(family("phi3")).windows == (None,) * 4


@pytest.mark.parametrize("factor", [0.01, 0.7, 1.5])
def test_a_part_that_has_no_pairs_is_refused(factor: float) -> None:
    with pytest.raises(CorruptModel, match="partial_rotary_factor"):
        spec_from_hf(family("phi3", partial_rotary_factor=factor))


def test_other_kinds_of_rope_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="linear"):
        spec_from_hf(family("phi3", rope_scaling={"type": "linear", "factor": 2.0}))
