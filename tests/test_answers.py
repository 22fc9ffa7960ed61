"""Answers taken apart: reasoning, content and tool calls as fields, with `text` left whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from quire import LLM, SamplingParams
from quire.inputs.answers import AnswerOptions, read_answer
from quire.openai_api.outputs import Answer
from quire.openai_api.split_stream import SplitStream
from quire.outputs import AnswerReading, CompletionOutput, ToolCall
from quire.server.child.preparing import Preparing
from tests.tiny_llm import tiny_llm

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
WEATHER = ToolCall("weather", {"city": "Oslo"})
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CHAT = [{"role": "user", "content": "Is it cold?"}]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}\n"
OPENS = PLAIN + "<think>\n"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("tiny"), chat_template=PLAIN) as made:
        yield made


def saying(llm: LLM, text: str, **fields: Any) -> SamplingParams:
    """Parameters under which any model says exactly this."""
    ids = [*llm.get_tokenizer().encode(text, add_special_tokens=False), 2]

    def dictated(output_ids: list[int], logits: Tensor) -> Tensor:
        logits[:] = -torch.inf
        logits[ids[len(output_ids)]] = 0.0
        return logits

    usual: dict[str, Any] = {"max_tokens": len(ids), "temperature": 0.0}
    return SamplingParams(**{**usual, **fields}, logits_processors=[dictated])


def chat(llm: LLM, text: str, **options: Any) -> CompletionOutput:
    [output] = llm.chat(CHAT, saying(llm, text), use_tqdm=False, **options)
    answer = output.outputs[0]
    assert answer.text == text
    return answer


def test_a_chat_with_tools_has_its_calls_apart(llm: LLM) -> None:
    answer = chat(llm, f"<think>Cold?</think>Let me see. {CALL}", tools=TOOLS)
    assert answer.reasoning == "Cold?"
    assert answer.content == "Let me see."
    assert answer.tool_calls == (WEATHER,)
    assert "reasoning='Cold?'" in repr(answer) and "weather" in repr(answer)


def test_without_tools_a_call_is_just_text(llm: LLM) -> None:
    answer = chat(llm, f"Like this: {CALL}")
    assert (answer.content, answer.tool_calls, answer.reasoning) == (answer.text, (), None)


def test_reasoning_that_the_prompt_opened_is_reasoning(llm: LLM) -> None:
    answer = chat(llm, "It may be.</think>Yes.", chat_template=OPENS)
    assert (answer.reasoning, answer.content) == ("It may be.", "Yes.")
    unfinished = chat(llm, "It may be, or", chat_template=OPENS)
    assert (unfinished.reasoning, unfinished.content) == ("It may be, or", "")
    assert chat(llm, "It may be, or").reasoning is None


def test_a_completion_is_left_whole_unless_an_option_names_a_parser(
    llm: LLM, tmp_path: Path
) -> None:
    text = f"<think>Hm.</think>{CALL}"

    def complete(one: LLM) -> CompletionOutput:
        return one.generate("Say:", saying(one, text), use_tqdm=False)[0].outputs[0]

    answer = complete(llm)
    assert (answer.content, answer.reasoning, answer.tool_calls) == (text, None, ())
    with tiny_llm(tmp_path, tool_call_parser="hermes", reasoning_parser="qwen3") as other:
        answer = complete(other)
        assert (answer.content, answer.reasoning, answer.tool_calls) == ("", "Hm.", (WEATHER,))
        assert chat(other, CALL, chat_template=PLAIN).tool_calls == (WEATHER,)


def test_a_parser_that_is_named_reads_no_other_tags(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, reasoning_parser="mistral", chat_template=PLAIN) as llm:
        assert chat(llm, "<think>a</think>b").reasoning is None
        assert chat(llm, "[THINK]a[/THINK]b").reasoning == "a"


def test_special_tokens_that_mark_parts_are_seen_though_the_text_leaves_them_out(
    llm: LLM,
) -> None:
    """As <|python_tag|> and [TOOL_CALLS] do in some models; here <|im_start|> stands in."""
    reading = AnswerReading(tool_format="llama3")
    assert read_answer('<|python_tag|>{"name": "f", "parameters": {}}', reading).tool_calls
    text = '<|im_start|>{"name": "f", "parameters": {}}'
    [output] = llm.chat(CHAT, saying(llm, text), use_tqdm=False, tools=TOOLS)
    # What the token itself says is no mark, so the plain text is what is read.
    assert output.outputs[0].text == '{"name": "f", "parameters": {}}'
    assert output.outputs[0].tool_calls == (ToolCall("f", {}),)


def test_special_tokens_that_mark_no_part_are_left_out_of_all_of_them(llm: LLM) -> None:
    said = "<think>a<|im_start|>b</think>c<|im_start|>d"
    for keeps, parts in ((False, ("ab", "cd")), (True, ("a<|im_start|>b", "c<|im_start|>d"))):
        params = saying(llm, said, skip_special_tokens=not keeps)
        [output] = llm.chat(CHAT, params, use_tqdm=False)
        assert (output.outputs[0].reasoning, output.outputs[0].content) == parts


@pytest.mark.parametrize("text", ["a<think>b</think>c</think>d", "a</thinking>b</think>c"])
def test_the_first_close_ends_thoughts_that_the_prompt_opened(text: str) -> None:
    """Streams and whole answers are read alike."""
    read = read_answer(text, AnswerReading(began_in_prompt=True))
    stream = SplitStream(began_reasoning=True, offered=None)
    shown = [stream.feed(letter) for letter in text]
    shown.append(stream.end(Answer(0, text, (1,), "stop", content=read.content)))
    assert "".join(parts.reasoning for parts in shown) == read.reasoning
    assert "".join(parts.content for parts in shown) == read.content


def test_every_sample_is_read_and_an_error_has_no_parts(llm: LLM) -> None:
    params = saying(llm, "<think>a</think>b", n=2, temperature=1.0)
    [output] = llm.chat(CHAT, params, use_tqdm=False)
    assert [(a.reasoning, a.content) for a in output.outputs] == [("a", "b")] * 2
    [failed] = llm.chat([[]], SamplingParams(), use_tqdm=False, on_error="return")
    assert (failed.outputs[0].content, failed.outputs[0].tool_calls) == ("", ())


def test_what_was_asked_decides_how_an_answer_is_read() -> None:
    assert AnswerOptions().for_text("x") is None
    assert AnswerOptions().for_chat("x", None).tool_format == "none"
    assert AnswerOptions().for_chat("x", {}).tool_format == "auto"
    assert AnswerOptions(tool_format="hermes").for_text(None) == AnswerReading("", "hermes")
    assert AnswerOptions().for_chat("... <think>\n", None).began_in_prompt
    named = AnswerOptions("[THINK]")
    assert not named.for_chat("<think>", None).began_in_prompt


MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>")
HIDDEN = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


def with_channels(llm: LLM) -> Any:
    """The tokenizer with other words for some of its special tokens."""
    written = llm.get_tokenizer().backend_tokenizer.to_str()
    others = ("<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>")
    for other, mark in zip((*others, "<issue_start>"), MARKS, strict=True):
        written = written.replace(other, mark)
    backend = Backend.from_str(written)
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=PLAIN)


def test_channels_are_read_though_the_text_leaves_their_marks_out(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, chat_template=PLAIN) as llm:
        session = llm._session
        row: dict[str, Any] = {"messages": CHAT, "params": {}}

        def prepared() -> Any:
            [made] = Preparing(session).prepare_each([row])
            return made

        assert prepared().params.skip_special_tokens
        llm.set_tokenizer(with_channels(llm))

        def ask(text: str, **options: Any) -> CompletionOutput:
            return llm.chat(CHAT, saying(llm, text), use_tqdm=False, **options)[0].outputs[0]

        answer = ask(f"{HIDDEN}<|channel|>final<|message|>Yes.")
        assert answer.text == "analysisHm.assistantfinalYes."
        assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")
        answer = ask("<|channel|>final<|message|>Yes.")
        assert (answer.reasoning, answer.content) == (None, "Yes.")
        call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        answer = ask(f'{HIDDEN}{call}{{"city": "Oslo"}}', tools=TOOLS)
        assert (answer.reasoning, answer.content, answer.tool_calls) == ("Hm.", "", (WEATHER,))
        # A server shows parts while they are written, and sees them by their marks.
        assert not prepared().params.skip_special_tokens
        row["params"] = {"skip_special_tokens": True}
        assert prepared().params.skip_special_tokens
