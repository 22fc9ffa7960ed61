"""Splits an answer into reasoning, content and tool calls while it is being written.

Text that may be the beginning of a mark is held back. From the first mark of a call on all text is
held back until the call closes, or, if its format has no closing mark, until the answer ends: then
the engine gives the parts of the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.inputs.channels import (
    ChannelReader,
    Piece,
    is_in_channels,
    may_become_channels,
    num_open,
)
from quire.inputs.marked_calls import MARKS, Offered, read_marked
from quire.inputs.tool_calls import FUNCTOOLS, OPENINGS
from quire.openai_api.outputs import Answer, Call, calls_of
from quire.params.reasoning import TAGS


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that can be sent now."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


class _Lines:
    """Joins messages of one kind: each without white space around it, with line breaks between
    them."""

    def __init__(self) -> None:
        self._message, self._began, self._blank = -1, False, ""
        self.shown: list[str] = []

    def add(self, piece: Piece) -> str:
        """The text that can be sent now."""
        if piece.message != self._message:
            self._message, self._began, self._blank = piece.message, False, ""
        text = self._blank + piece.text
        if not self._began:
            text = text.lstrip()
        body = text.rstrip()
        self._blank = text[len(body) :]  # white space, dropped at the end of the message
        if not body:
            return ""
        if not self._began and self.shown:
            body = "\n" + body
        self._began = True
        self.shown.append(body)
        return body


class ChannelSplit:
    """The same for an answer in channels. A call ends such an answer, and the engine parses it."""

    def __init__(self, *, tools: bool, at_most: int | None) -> None:
        self._tools, self._at_most, self._reader = tools, at_most, ChannelReader()
        self._reasoning, self._content = _Lines(), _Lines()

    def feed(self, text: str) -> Parts:
        return self._shown(self._reader.feed(text))

    def end(self, answer: Answer) -> Parts:
        """The remaining parts; a call that cannot be parsed is content."""
        parts = self._shown(self._reader.finish())
        shown, whole = "".join(self._content.shown), answer.content or ""
        rest = whole[len(shown) :] if whole.startswith(shown) else ""
        return Parts(parts.content + rest, parts.reasoning, answer.calls[: self._at_most])

    def _shown(self, pieces: list[Piece]) -> Parts:
        reasoning = content = ""
        for piece in pieces:
            if piece.kind == "reasoning":
                reasoning += self._reasoning.add(piece)
            elif piece.kind == "content" or not self._tools:
                content += self._content.add(piece)
        return Parts(content, reasoning)


class SplitStream:
    """Splits one answer of a chat, piece by piece; at most `at_most` calls of the `offered`
    functions are sent, and none where no functions are."""

    def __init__(
        self, *, began_reasoning: bool, offered: Offered | None, at_most: int | None = None
    ) -> None:
        self._tools, self._offered, self._at_most = offered is not None, offered or {}, at_most
        self._held = ""  # text that was not sent yet
        self._began_in_prompt = began_reasoning
        self._closings = [closing for _, closing in TAGS]  # any may end what a prompt began
        self._state = "start"
        self._after_reasoning = False
        self._content: list[str] = []
        self._channels: ChannelSplit | None = None
        self.num_calls = 0

    def feed(self, text: str) -> Parts:
        if self._channels is not None:
            return self._channels.feed(text)
        self._held += text
        reasoning = content = ""
        calls: tuple[Call, ...] = ()
        if self._state == "start":
            self._begin()
        if self._channels is not None:
            return self._channels.feed(self._held)
        if self._state == "reasoning":
            reasoning = self._reason()
        if self._state == "content":
            content = self._write()
        if self._state == "calls":
            calls = self._closed_calls()
        return Parts(content, reasoning, calls)

    def end(self, answer: Answer) -> Parts:
        """The remaining parts when the answer is finished and the engine has parsed it."""
        if self._channels is not None:
            return self._channels.end(answer)
        calls = answer.calls[self.num_calls : self._at_most]
        self.num_calls += len(calls)
        held, self._held = self._held, ""
        if self._state == "reasoning" or (self._state == "start" and self._began_in_prompt):
            return Parts(reasoning=held.rstrip(), calls=calls)
        if self._state in ("content", "start") and not answer.calls:
            return self._show(held, calls)
        whole, shown = answer.content or "", "".join(self._content)
        rest = whole[len(shown) :] if whole.startswith(shown) else ""
        return self._show(rest, calls)

    def _show(self, text: str, calls: tuple[Call, ...] = ()) -> Parts:
        self._content.append(text)
        return Parts(text, calls=calls)

    def _begin(self) -> None:
        """Find out whether the answer begins with reasoning, when there is enough text."""
        body = self._held.lstrip()
        if is_in_channels(body):
            self._channels = ChannelSplit(tools=self._tools, at_most=self._at_most)
            return
        for opening, closing in TAGS:
            if body.startswith(opening):
                self._held, self._closings = body[len(opening) :].lstrip(), [closing]
                self._state = "reasoning"
                return
        undecided = may_become_channels(body) or any(
            opening.startswith(body) for opening, _ in TAGS
        )
        if body and not undecided:
            self._state = "reasoning" if self._began_in_prompt else "content"

    def _reason(self) -> str:
        closings = self._closings
        ends = [(self._held.find(one), one) for one in closings if one in self._held]
        if ends:
            at, closing = min(ends)
            shown, self._held = self._held[:at].rstrip(), self._held[at + len(closing) :]
            self._state, self._after_reasoning = "content", True
            return shown
        keep = num_open(self._held, closings)
        # White space at the end is kept back: before a closing tag it is dropped.
        shown = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(shown) :]
        return shown

    def _write(self) -> str:
        if self._after_reasoning and not self._content:
            self._held = self._held.lstrip()
        if self._tools and not self._content:
            body = self._held.lstrip()
            if body.startswith(("{", "[", FUNCTOOLS)):
                self._state = "calls"
                return ""
            if body and FUNCTOOLS.startswith(body):
                return ""
        marks = OPENINGS if self._tools else ()
        found = [self._held.find(mark) for mark in marks if mark in self._held]
        end = min(found) if found else len(self._held) - num_open(self._held, marks)
        shown, self._held = self._held[:end], self._held[end:]
        if found:
            self._state = "calls"
        if shown:
            self._content.append(shown)
        return shown

    def _closed_calls(self) -> tuple[Call, ...]:
        """The complete calls, if the format marks their ends and only white space is between."""
        if self.num_calls:
            self._held = self._held.lstrip()
        marks = next((each for each in MARKS.values() if self._held.startswith(each.opening)), None)
        end = -1 if marks is None else self._held.rfind(marks.closing)
        if marks is None or end < 0:
            return ()
        end += len(marks.closing)
        rest, read = read_marked(self._held[:end], (marks,), self._offered)
        if not read or rest.strip():
            return ()  # other text among the calls: decided at the end of the answer
        self._held = self._held[end:]
        calls = calls_of(read) or ()
        calls = calls[: None if self._at_most is None else self._at_most - self.num_calls]
        self.num_calls += len(calls)
        return calls
