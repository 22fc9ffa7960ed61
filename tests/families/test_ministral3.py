"""Models that see and write as Ministral 3, or as an older kind: the config of the text counts."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.ministral3 import Ministral3Config
from transformers.models.mistral import MistralConfig
from transformers.models.mistral3 import Mistral3Config

from quire.layer_plan import QueryGrowth
from quire.weights.hf_config import spec_from_hf
from tests.parity.families import SIZES
from tests.parity.more_families import GROWING

TEXTS: dict[str, tuple[Any, QueryGrowth | None]] = {
    "ministral3": (Ministral3Config(**SIZES, rope_parameters=GROWING), QueryGrowth(0.3, 32)),
    "mistral": (MistralConfig(**SIZES, sliding_window=9), None),
}


@pytest.mark.parametrize("family", TEXTS)
def test_a_model_that_sees_is_of_the_family_of_its_text(family: str) -> None:
    text, growth = TEXTS[family]
    config = Mistral3Config(text_config=text.to_dict()).to_dict()
    spec = spec_from_hf({**config, "architectures": ["Mistral3ForConditionalGeneration"]})
    alone = spec_from_hf({**text.to_dict(), "dtype": "float32"})
    assert (spec.family, spec.layers) == (family, alone.layers)
    assert spec.layers[0].attention.query_growth == growth


def test_queries_do_not_grow_where_nothing_is_said_of_it() -> None:
    rope = {key: value for key, value in GROWING.items() if key != "llama_4_scaling_beta"}
    config = Ministral3Config(**SIZES, rope_parameters=rope).to_dict()
    assert spec_from_hf(config).layers[0].attention.query_growth is None
    bare = {key: config[key] for key in (*SIZES, "model_type") if key in config}
    assert spec_from_hf(bare).layers[0].attention.query_growth == QueryGrowth(0.1, 16384)
