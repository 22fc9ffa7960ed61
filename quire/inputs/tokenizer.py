"""Tokenizer: text to token ids and back, over a `tokenizers.Tokenizer`.

Special tokens written in a text are read as such. Beginning and end tokens are added as the
tokenizer's own files say; a text that already begins with the beginning token gets no second one.
`transformers` is imported only by `hf_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.base.boundary import refusing
from quire.errors import InvalidPrompt, ModelError, PromptTooLong
from quire.inputs.channels import CHANNEL
from quire.inputs.literal import LiteralEncoder
from quire.inputs.quoting import ChatText, SpecialTokens
from quire.inputs.token_bytes import TokenBytes, not_decoded
from quire.request import Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Texts encoded at once: enough for every core, and few enough that the unused offsets and masks of
# the library stay small.
_BATCH = 1024
_BATCH_CHARACTERS = 1 << 22
# The library takes up to 150 bytes for a character of text; no model reads as much as this.
_MOST_CHARACTERS = 1 << 25


def check_text(text: str) -> None:
    """Refuse text with half of a surrogate pair, which cannot be encoded."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise InvalidPrompt(
            f"the text holds half of a surrogate pair (U+{ord(text[at]):04X}) at character {at}; "
            'it is not valid Unicode, clean it with text.encode("utf-16", "surrogatepass")'
            '.decode("utf-16", "replace")',
            parameter="prompt",
            value=text[at : at + 1],
        ) from None


_NOTHING: Ints = np.zeros(0, np.int32)


def text_problem(text: str) -> InvalidPrompt | None:
    try:
        check_text(text)
    except InvalidPrompt as error:
        return error
    if len(text) > _MOST_CHARACTERS:
        return PromptTooLong(
            f"the text has {len(text):,} characters; quire encodes up to {_MOST_CHARACTERS:,} at "
            "once, pass a shorter one",
            parameter="prompt",
            value=len(text),
        )
    return None


def _batches(indexes: Sequence[int], texts: Sequence[str]) -> Iterator[list[int]]:
    """The indexes in batches, whose texts are few and short enough to be encoded at once."""
    some: list[int] = []
    characters = 0
    for index in indexes:
        some.append(index)
        characters += len(texts[index])
        if len(some) >= _BATCH or characters >= _BATCH_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some


def _not_encoded(why: str) -> InvalidPrompt:
    return InvalidPrompt(
        f"the model's tokenizer cannot encode the text: {why}; shorten or clean it (a run of "
        "millions of blanks is too much for its pattern), or pass token ids",
        parameter="prompt",
    )


class Tokenizer:
    """One model's tokenizer.

    `special_tokens_in_messages`: special tokens in chat messages are read as such.
    `special_tokens` has the named ones ("bos_token", "eos_token", ...), `chat_templates` the
    model's templates by name ("default" for the usual one), `eos_ids` every id that ends an
    answer. `gives_types`: models are told which of two texts a token is of.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str] | None = None,
        eos_ids: Sequence[int] | None = None,
        model_max_length: int | None = None,
        clean_up_spaces: bool = False,
        special_tokens_in_messages: bool = False,
        gives_types: bool = True,
    ) -> None:
        backend.no_truncation()  # a limit baked into the file would cut prompts silently
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_templates = dict(chat_templates or {})
        self.bos_id = self._named("bos_token")
        eos = self._named("eos_token")
        self.eos_ids = tuple(eos_ids) if eos_ids is not None else () if eos is None else (eos,)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.model_max_length = model_max_length  # as its own files say; huge numbers mean none
        self._clean_up_spaces = clean_up_spaces
        self.special_tokens_in_messages = special_tokens_in_messages
        self.gives_types = gives_types
        # The placeholders for media in the text of a chat, by kind, if the model takes media; and
        # whether they are put at the places of the media.
        self.media_in_text: Mapping[str, str] = {}
        self.interleave_media = False
        self._hf: Any = None

    def _named(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self.backend)

    @cached_property
    def quotable(self) -> SpecialTokens:
        """The special tokens that count as text in messages."""
        added = self.backend.get_added_tokens_decoder().values()
        return SpecialTokens(token.content for token in added if token.special)

    @cached_property
    def _literally(self) -> LiteralEncoder:
        return LiteralEncoder(self.backend)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that `skip_special_tokens` leaves out of a text."""
        return self.token_bytes.special_ids

    @property
    def marks_channels(self) -> bool:
        """Whether special tokens mark the channels of an answer (channels.py)."""
        return self.backend.token_to_id(CHANNEL) in self.special_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> Ints:
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Ints]:
        """Token ids of each text, computed on all cores; raises for the first that has none."""
        encoded: list[Ints] = []
        for index, ids in enumerate(self.encode_each(texts, add_special_tokens)):
            if isinstance(ids, InvalidPrompt):
                raise ids.at(index) from ids.__cause__
            encoded.append(ids)
        return encoded

    def encode_each(
        self, texts: Sequence[str | ChatText], add_special_tokens: bool = True
    ) -> list[Ints | InvalidPrompt]:
        """Token ids of each text, or what is wrong with it, computed on all cores."""
        quoted = {i: t for i, t in enumerate(texts) if isinstance(t, ChatText) and t.literal}
        plain = [text.text if isinstance(text, ChatText) else text for text in texts]
        encoded = self._encode_plain(
            ["" if i in quoted else text for i, text in enumerate(plain)], add_special_tokens
        )
        for i, chat in quoted.items():
            encoded[i] = text_problem(chat.text) or self._attempt(chat, add_special_tokens)
        return encoded

    def _encode_plain(
        self, texts: Sequence[str], add_special_tokens: bool
    ) -> list[Ints | InvalidPrompt]:
        encoded: list[Ints | InvalidPrompt] = [text_problem(text) or _NOTHING for text in texts]
        good = [i for i, found in enumerate(encoded) if found is _NOTHING]
        for some in _batches(good, texts):
            try:
                rows: list[Ints | InvalidPrompt] = []
                rows += self._encode([texts[i] for i in some], add_special_tokens)
            except InvalidPrompt:  # one text is invalid: encode one by one to find it
                rows = [self._attempt(texts[i], add_special_tokens) for i in some]
            for i, row in zip(some, rows, strict=True):
                encoded[i] = row
        return encoded

    def _attempt(self, text: str | ChatText, add_special_tokens: bool) -> Ints | InvalidPrompt:
        try:
            if isinstance(text, str):
                return self._encode([text], add_special_tokens)[0]
            with refusing(_not_encoded):
                ids = self._literally.encode(text, add_special_tokens)
                return self._without_second_bos(ids, add_special_tokens)
        except InvalidPrompt as error:
            return error

    def _encode(self, texts: list[str], add_special_tokens: bool) -> list[Ints]:
        encoded: list[Ints] = []
        with refusing(_not_encoded):
            for encoding in self.backend.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            ):
                ids = np.array(encoding.ids, np.int32)
                encoded.append(self._without_second_bos(ids, add_special_tokens))
        return encoded

    def _without_second_bos(self, ids: Ints, add_special_tokens: bool) -> Ints:
        twice = add_special_tokens and len(ids) > 1 and ids[0] == ids[1] == self.bos_id
        return ids[1:] if twice else ids

    def decode(
        self,
        ids: Sequence[int] | Ints,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of these ids, as a text of its own (a space before the first word is lost
        where the tokenizer adds one)."""
        plain = [int(i) for i in ids]
        if not skip_special_tokens and not spaces_between_special_tokens:
            pieces = self.token_bytes.pieces(False, False)
            head = [self.token_bytes.first(i, pieces[i]) for i in plain[:1]]
            return b"".join([*head, *(pieces[i] for i in plain[1:])]).decode(errors="replace")
        with refusing(not_decoded):
            return self.backend.decode(plain, skip_special_tokens=skip_special_tokens)

    def decode_batch(
        self, rows: Sequence[Sequence[int] | Ints], skip_special_tokens: bool = True
    ) -> list[str]:
        plain = [[int(i) for i in row] for row in rows]
        with refusing(not_decoded):
            return self.backend.decode_batch(plain, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """The text of a single token: with its space, and U+FFFD for part of a character."""
        return self.token_bytes.pieces(False, True)[token_id].decode(errors="replace")

    def hf_tokenizer(self) -> Any:
        """A `transformers.PreTrainedTokenizerFast` over the same vocabulary, made when first
        asked for."""
        if self._hf is None:
            try:
                from transformers import PreTrainedTokenizerFast
            except ImportError:
                raise ModelError(
                    "get_tokenizer() returns a transformers tokenizer, and transformers is not "
                    "installed; run: pip install 'transformers>=5'"
                ) from None
            options: dict[str, Any] = dict(self.special_tokens)
            if self.model_max_length is not None:
                options["model_max_length"] = self.model_max_length
            if self.chat_templates:
                single = list(self.chat_templates) == ["default"]
                options["chat_template"] = (
                    self.chat_template if single else dict(self.chat_templates)
                )
            make: Any = PreTrainedTokenizerFast
            self._hf = make(
                tokenizer_object=self.backend,
                clean_up_tokenization_spaces=self._clean_up_spaces,
                **options,
            )
        return self._hf
