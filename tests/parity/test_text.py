"""Text of the default model: stops, special tokens, chats, as a user meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(str(default_model), dtype="float32", kv_cache_memory_bytes=256 << 20) as made:
        yield made


def answer(llm: LLM, prompt: str, **fields: object) -> tuple[str, str | None, object]:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 16, **fields})  # type: ignore[arg-type]
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    made = output.outputs[0]
    return made.text, made.finish_reason, made.stop_reason


WEEK = "The days of the week are Monday, Tuesday,"


def test_a_leading_space_stays(llm: LLM) -> None:
    text, reason, why = answer(llm, WEEK)
    assert text.startswith(" Wednesday, Thursday, Friday") and (reason, why) == ("length", None)


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (["day, Fri"], " Wednesday, Thurs"),  # begins and ends inside tokens
        ([" Friday", "day, F"], " Wednesday, Thurs"),  # the one that completes first
        (["nowhere", ", Th"], " Wednesday"),
        (["W"], " "),
    ],
)
def test_a_stop_string_cuts_where_it_begins(llm: LLM, stop: list[str], kept: str) -> None:
    text, reason, why = answer(llm, WEEK, stop=stop)
    assert (text, reason) == (kept, "stop") and why in stop


def test_a_stop_string_can_be_included_and_waits_for_min_tokens(llm: LLM) -> None:
    text, _, _ = answer(llm, WEEK, stop=["day"], include_stop_str_in_output=True)
    assert text == " Wednesday"
    text, reason, _ = answer(llm, WEEK, stop=["day"], min_tokens=4)
    assert text.startswith(" Wednesday, Thurs") and reason == "stop"


def test_a_stop_id_is_named_and_left_out_of_the_text(llm: LLM) -> None:
    comma = llm.get_tokenizer()(",").input_ids[0]
    text, reason, why = answer(llm, WEEK, stop_token_ids=[comma])
    assert (text, reason, why) == (" Wednesday", "stop", comma)
    params = SamplingParams(temperature=0, stop_token_ids=[comma])
    (output,) = llm.generate(WEEK, params, use_tqdm=False)
    assert output.outputs[0].token_ids[-1] == comma


def test_a_chat_ends_by_itself_without_a_stop_reason(llm: LLM) -> None:
    (output,) = llm.chat(
        [{"role": "user", "content": "Say only the word yes."}],
        SamplingParams(temperature=0, max_tokens=40),
        use_tqdm=False,
    )
    made = output.outputs[0]
    assert made.finish_reason == "stop" and made.stop_reason is None
    assert "<|im_end|>" not in made.text and made.token_ids[-1] == 2


def test_ignore_eos_goes_on(llm: LLM) -> None:
    (output,) = llm.chat(
        [{"role": "user", "content": "Say only the word yes."}],
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, skip_special_tokens=False),
        use_tqdm=False,
    )
    assert len(output.outputs[0].token_ids) == 40
    assert "<|im_end|>" in output.outputs[0].text


def test_bad_words_and_bias_change_the_answer(llm: LLM) -> None:
    text, _, _ = answer(llm, WEEK, bad_words=["Wednesday"])
    assert "Wednesday" not in text
    thursday = llm.get_tokenizer()(" Thursday").input_ids[0]
    text, _, _ = answer(llm, WEEK, logit_bias={thursday: 100.0}, max_tokens=1)
    assert text == " Thursday"
    text, _, _ = answer(llm, WEEK, allowed_token_ids=[thursday], max_tokens=2)
    assert text == " Thursday Thursday"


def test_characters_of_several_tokens_come_out_whole(llm: LLM) -> None:
    text, _, _ = answer(llm, "Repeat: 日本語 日本語 日本語 日本語 日本語", max_tokens=12)
    assert "�" not in text[:-1]
