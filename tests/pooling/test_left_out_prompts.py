"""Prompts whose tokens are read and not pooled: `include_prompt` of sentence-transformers.

With sentence-transformers 6.2 itself every kind of pooling was compared once, for six families;
here are the same numbers by definition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.errors import InvalidPrompt, NotSupported
from tests.pooling.test_newer_sentence_files import TEMPLATE, change
from tests.pooling.tiny import (
    DECODERS,
    ENCODERS,
    hidden_of,
    open_llm,
    similarity,
    texts,
    write_model,
    write_sentence_files,
)

EVERY = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
# <s> and 20 tokens; the one that ends a text is not of the prompt.
PROMPT, LEFT_OUT = " ".join(f"w{i}" for i in range(20)) + " ", 21


def pooled(states: Tensor, kind: str, left_out: int) -> Tensor:
    """The definition of each kind, for what is left of a text."""
    x, places = states[left_out:], torch.arange(left_out, len(states))[:, None] + 1
    made: dict[str, Tensor] = {
        "cls": x[0],
        "max": x.amax(0),
        "mean": x.mean(0),
        "mean_sqrt_len_tokens": x.sum(0) / len(x) ** 0.5,
        "weightedmean": (places * x).sum(0) / places.sum(),
        "lasttoken": x[-1],
    }
    return made[kind]


def write(directory: Path, kinds: str | Sequence[str], base: str = "bert", **prompts: str) -> Any:
    config = ENCODERS[base] if base in ENCODERS else DECODERS[base]
    model = write_model(directory, config)
    write_sentence_files(directory, "mean_tokens", normalise=False)
    pooling = {"pooling_mode": kinds, "include_prompt": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    said = {"prompts": {"long": PROMPT, **prompts}}
    change(directory / "config_sentence_transformers.json", **said)
    return model


@pytest.mark.parametrize(
    ("base", "kinds"),
    [
        *(("bert", kinds) for kinds in ("mean_sqrt_len_tokens", EVERY)),
        *(("qwen3", kinds) for kinds in ("cls", "mean", "max", "lasttoken", EVERY)),
    ],
)
def test_tokens_of_a_prompt_are_not_pooled(
    base: str, kinds: str | list[str], tmp_path: Path
) -> None:
    """The decoder computes them in chunks of 16, the second time beside a prefix cache."""
    model = write(tmp_path, kinds, base)
    given = texts(4, longest=30)
    small = {"max_num_batched_tokens": 16} if base == "qwen3" else {}
    with open_llm(tmp_path, **small) as llm:
        without = llm.embed(given, use_tqdm=False)
        asked = [llm.embed(given, prompt_name="long", use_tqdm=False) for _ in range(2)]
    for outputs, left_out in ((without, 0), (asked[0], LEFT_OUT), (asked[1], LEFT_OUT)):
        for output in outputs:
            states = hidden_of(model, output.prompt_token_ids)
            each = [kinds] if isinstance(kinds, str) else kinds
            expected = torch.cat([pooled(states, kind, left_out) for kind in each])
            assert output.outputs.embedding == pytest.approx(expected.tolist(), abs=2e-4)


def test_tokens_that_were_given_as_ids_all_count(tmp_path: Path) -> None:
    """They are the caller's own, even where a text with its prompt has the same ones."""
    model = write(tmp_path, "mean")
    change(tmp_path / "config_sentence_transformers.json", default_prompt_name="long")
    with open_llm(tmp_path) as llm:
        [text] = llm.embed(["w1"], use_tqdm=False)
        ids = text.prompt_token_ids
        both = llm.embed(["w1", {"prompt_token_ids": ids}, "w1"], use_tqdm=False)
        [every] = llm.encode("w1", pooling_task="token_embed", use_tqdm=False)
    assert both[1].prompt_token_ids == ids
    states = hidden_of(model, ids)
    for output, left_out in zip(both, (LEFT_OUT, 0, LEFT_OUT), strict=True):
        assert similarity(output.outputs.embedding, states[left_out:].mean(0)) > 0.99999
    assert len(every.outputs.data) == len(ids)  # each token has its vector


def test_texts_are_cut_behind_their_prompt(tmp_path: Path) -> None:
    model = write(tmp_path, "mean", short="w7 w8 ")
    with open_llm(tmp_path) as llm:
        options = {"prompt_name": "short", "truncate_prompt_tokens": 6, "use_tqdm": False}
        [output] = llm.embed("w1 w2 w3 w4 w5", **options)
        left = {"truncation_side": "left"}
        with pytest.raises(NotSupported, match="cut off the model's prompt"):
            llm.embed("w1", tokenization_kwargs=left, **options)
    assert output.prompt_token_ids == [0, 13, 14, 7, 8, 2]
    states = hidden_of(model, output.prompt_token_ids)
    assert similarity(output.outputs.embedding, states[3:].mean(0)) > 0.99999


def test_a_text_with_nothing_to_pool_is_an_error_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "mean", "qwen3")
    options = {"prompt_name": "long", "use_tqdm": False}
    bare = {"add_special_tokens": False}
    with open_llm(tmp_path) as llm:
        empty, fine = llm.embed(["", "w1"], tokenization_kwargs=bare, on_error="return", **options)
        [ended] = llm.embed([""], **options)  # the token that ends it is left
    assert isinstance(empty.error, InvalidPrompt)
    assert "no token is left to pool" in str(empty.error)
    assert fine.error is None
    assert len(ended.outputs.embedding) == 48


def test_messages_are_pooled_with_their_prompt(tmp_path: Path) -> None:
    """As sentence-transformers does: a template does not say which tokens are whose."""
    model = write(tmp_path, "mean", "qwen3")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    change(tmp_path / "sentence_bert_config.json", modality_config={"text": {}, "message": {}})
    with open_llm(tmp_path) as llm:
        [output] = llm.embed("w1", prompt_name="long", use_tqdm=False)
    expected = hidden_of(model, output.prompt_token_ids).mean(0)
    assert similarity(output.outputs.embedding, expected) > 0.99999
