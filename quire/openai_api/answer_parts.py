"""Splits one streamed answer into its parts, as far as they are certain: chats and responses."""

from __future__ import annotations

from collections.abc import Iterator

from quire.inputs.marked_calls import offered_functions
from quire.openai_api.asks import Asked
from quire.openai_api.bodies import constrained_calls
from quire.openai_api.outputs import Answer, Output
from quire.openai_api.split_stream import Parts, SplitStream


class AnswerParts:
    """Takes the new text of an answer piece by piece; `first` is the first output of its row."""

    def __init__(self, asked: Asked, first: Output) -> None:
        self._asked = asked
        tools = () if asked.tools.constrained else asked.tools.offered
        self._stream = SplitStream(
            began_reasoning=first.began_reasoning,
            offered=offered_functions(tools),
            at_most=asked.tools.at_most,
        )
        self._constrained: list[str] = []  # text whose kind is known only at its end

    def feed(self, answer: Answer) -> Iterator[Parts]:
        is_over = answer.finish_reason is not None
        for parts in self._split(answer, is_over=is_over):
            if not self._asked.tools.constrained:
                yield parts
                continue
            self._constrained.append(parts.content)
            if parts.reasoning:
                yield Parts(reasoning=parts.reasoning)
        if is_over and self._asked.tools.constrained:
            text = "".join(self._constrained)
            calls = constrained_calls(self._asked, text)
            yield Parts(calls=calls) if calls else Parts(content=text)

    def _split(self, answer: Answer, *, is_over: bool) -> Iterator[Parts]:
        yield self._stream.feed(answer.text)
        if is_over:
            yield self._stream.end(answer)
