"""What a model's generation_config.json asks for and is not read is said, and not more."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from quire.session.loaded_model import unread_line
from tests.specs import small_spec
from tests.tiny_llm import tiny_llm


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"no_repeat_ngram_size": 3}, ["no_repeat_ngram_size=3"]),
        ({"bad_words_ids": [[5]], "typical_p": 0.9}, ["bad_words_ids=[[5]]", "typical_p=0.9"]),
        ({"do_sample": False}, ["do_sample=False"]),
        ({"num_beams": 4}, ["num_beams=4"]),
    ],
)
def test_keys_that_would_change_answers_are_named(given: dict[str, Any], named: list[str]) -> None:
    line = unread_line(given, small_spec())
    assert line is not None
    assert all(one in line for one in named)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.7, "top_k": 20, "do_sample": True, "eos_token_id": [1, 2]},
        {"no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1.0, "bad_words_ids": None},
        {"do_sample": False, "temperature": 0.0},
        {"pad_token_id": 3, "transformers_version": "5.0", "use_cache": True},
    ],
)
def test_what_is_read_or_changes_nothing_is_not_named(given: dict[str, Any]) -> None:
    assert unread_line(given, small_spec()) is None


def test_it_is_said_when_the_model_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire")
    asked = {"no_repeat_ngram_size": 3, "top_k": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    with tiny_llm(tmp_path) as llm:
        assert llm.get_default_sampling_params().top_k == 7
    assert "also sets no_repeat_ngram_size=3, which is not read" in caplog.text
    caplog.clear()
    with tiny_llm(tmp_path, generation_config="vllm"):
        pass
    assert "no_repeat_ngram_size" not in caplog.text
