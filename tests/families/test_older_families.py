"""What configs of older families may not say."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import QuireError
from quire.weights.hf_config import spec_from_hf
from tests.parity.older_families import OLDER


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gptj", {"rotary_dim": None}),
        ("gptj", {"rotary_dim": 7}),
        ("gptj", {"rotary_dim": 18}),
        ("gptj", {"activation_function": "tanh"}),
        ("gptj", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("gptj", {"rope_theta": 500.0}),
        ("codegen", {"n_head": 6}),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
        ("gpt_neo", {"attention_types": [[["global", "near"], 1], [["local"], 1]]}),
        ("gpt_neo", {"attention_types": [["global"], 3]}),
        ("gpt_neo", {"window_size": 0}),
        ("persimmon", {"hidden_act": "silu"}),
    ],
)
def test_what_would_make_another_model_is_refused_by_key(name: str, said: dict[str, Any]) -> None:
    config = OLDER[name]
    given = {**config.to_dict(), "architectures": None}
    spec_from_hf(given)
    with pytest.raises(QuireError, match=next(iter(said))):
        spec_from_hf({**given, **said})
