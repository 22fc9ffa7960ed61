"""Token ids back to text, as what the tokens add after their prompt.

A completion is decoded from its bytes, with the prompt as context: a space before its first word
stays, and a character that the prompt began is completed. Bytes that are no UTF-8 become U+FFFD;
those of a character that may still be finished are held back until it is. All at once or piece
by piece gives the same text, in time linear in the tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from quire.inputs.tokenizer import Tokenizer
from quire.request import Ints

_UTF8 = codecs.getincrementaldecoder("utf-8")
# A character has at most 4 bytes, so an unfinished one is in the last 3.
_TAIL = 3


class Detokenizer:
    """The text of one answer as its tokens arrive.

    With byte tokens <0xC3> <0xA9> ("é"): push([<0xC3>]) gives "", push([<0xA9>]) gives "é".
    """

    __slots__ = ("_bytes", "_decoder", "_fresh", "_pieces")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] | Ints,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._bytes = tokenizer.token_bytes
        self._pieces = self._bytes.pieces(skip_special_tokens, spaces_between_special_tokens)
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._pieces[int(token_id)] + tail
            if len(tail) >= _TAIL:
                break
        self._fresh = not tail  # nothing that can be seen comes before the answer
        self._decoder = _UTF8(errors="replace")
        self._decoder.decode(tail[-_TAIL:])

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        # numpy's own integers would be looked up an order of magnitude more slowly
        plain = ids.tolist() if hasattr(ids, "tolist") else ids
        parts = list(map(self._pieces.__getitem__, plain))
        if self._fresh:
            self._drop_first_space(parts, plain)
        return self._decoder.decode(b"".join(parts))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never came to its end."""
        return self._decoder.decode(b"", final=True)

    def _drop_first_space(self, parts: list[bytes], ids: Iterable[int]) -> None:
        for index, (token_id, piece) in enumerate(zip(ids, parts, strict=True)):
            if piece:
                parts[index] = self._bytes.first(token_id, piece)
                self._fresh = False
                return


def completion_text(
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int] | Ints,
    output_ids: Sequence[int] | Ints,
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> str:
    """The text that `output_ids` add after `prompt_ids`."""
    detokenizer = Detokenizer(
        tokenizer,
        prompt_ids,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens,
    )
    return detokenizer.push(output_ids) + detokenizer.finish()


def completion_texts(
    tokenizer: Tokenizer,
    rows: Iterable[tuple[Sequence[int] | Ints, Sequence[int] | Ints]],
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> list[str]:
    """`completion_text` of several rows of (prompt ids, output ids)."""
    return [
        completion_text(
            tokenizer,
            prompt_ids,
            output_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        for prompt_ids, output_ids in rows
    ]
