"""Splits the text of an answer into reasoning, content and tool calls.

`text` always stays whole; the parts are fields beside it. The answer to a chat is searched for
reasoning, and for tool calls if it was given tools; a completion only if an option names a parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.inputs.marked_calls import Offered
from quire.inputs.reasoning import opens_reasoning
from quire.inputs.tool_calls import ParsedAnswer, parse_tool_calls
from quire.outputs import AnswerReading


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options: `reasoning_parser` as a tag ("" for any), `tool_call_parser` as a format (None
    if it is not set)."""

    reasoning_tag: str = ""
    tool_format: str | None = None

    def for_chat(self, prompt: str | None, offered: Offered | None) -> AnswerReading:
        """How the answer to a chat is read, whose prompt was rendered to this, with these tools."""
        tool_format = self.tool_format or ("none" if offered is None else "auto")
        began = opens_reasoning(prompt or "", self.reasoning_tag)
        return AnswerReading(self.reasoning_tag, tool_format, began, offered)

    def for_text(self, prompt: str | None) -> AnswerReading | None:
        """The same for a completion; None if it is not parsed."""
        if not self.reasoning_tag and self.tool_format is None:
            return None
        return self.for_chat(prompt, None)


def read_answer(text: str, reading: AnswerReading) -> ParsedAnswer:
    return parse_tool_calls(
        text,
        reading.tool_format,
        began_in_prompt=reading.began_in_prompt,
        tag=reading.reasoning_tag,
        offered=reading.offered,
    )
