"""Turns rows into prompts of token ids and parameters. Any thread may call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidPrompt, NotSupported, QuireError
from quire.inputs.chat import render_conversation
from quire.inputs.quoting import ChatText
from quire.inputs.shortening import kept_end, kept_part, num_kept
from quire.inputs.thoughts import after_thoughts
from quire.inputs.tokenizer import Tokenizer, check_text
from quire.inputs.transcript_params import wanted_of
from quire.jobs.child.requests import SharedParams, refuse_far_too_long, result_or_error
from quire.outputs import RequestOutput
from quire.params.pooling import PoolingParams
from quire.replicas.wire import Message
from quire.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from quire.session.beams import checked_search, refuse_processors, search_sampling
from quire.session.pooling import PoolingPrompt
from quire.session.transcribing import Hearing, Transcriber
from quire.step import Floats

if TYPE_CHECKING:
    from quire.request import Ints
    from quire.session.session import Session

# Characters: to encode millions of digits would take a minute and gigabytes.
LONGEST_COUNTED = 1 << 21
MakePooled = Callable[[RequestOutput], Floats | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row, ready for the engine. `pooled` makes numbers of the output, if the row asks for
    numbers. A row that is a piece of a sound has a `hearing`."""

    prompt: dict[str, Any] | PoolingPrompt
    params: SamplingParams | PoolingParams
    tokenization: dict[str, Any] | None = None
    pooled: MakePooled | None = None
    search: BeamSearchParams | None = None
    hearing: Hearing | None = None


@dataclass(frozen=True, slots=True)
class _Text:
    """A text to encode: `part` of it is enough for its last `keep` tokens, or for all."""

    chat: ChatText
    part: ChatText
    add_special_tokens: bool
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A row before its text is encoded; a row of token ids has no text."""

    row: Message
    params: SamplingParams
    search: BeamSearchParams | None
    text: _Text | None


class Preparing:
    def __init__(self, session: Session) -> None:
        self._session, self._shared = session, SharedParams()

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = self._session.model.tokenizer
        if tokenizer is None:
            raise NotSupported("text needs a tokenizer, and the engine has none; send token ids")
        return tokenizer

    @cached_property
    def transcriber(self) -> Transcriber:
        return Transcriber(self._session)

    def prepare_each(self, rows: Sequence[Message]) -> list[Prepared | QuireError]:
        """The request or the error of each row. Their texts are encoded together, which is faster
        than one by one."""
        begun = [result_or_error(partial(self._begin, row)) for row in rows]
        texts = [one.text for one in begun if isinstance(one, _Begun) and one.text is not None]
        encoded = iter(self._encode(texts))

        def finished(one: _Begun | Prepared | QuireError) -> Prepared | QuireError:
            if not isinstance(one, _Begun):
                return one
            ids = None if one.text is None else next(encoded)
            if isinstance(ids, QuireError):
                return ids
            return result_or_error(partial(self._finish, one, ids))

        return [finished(one) for one in begun]

    def _begin(self, row: Message) -> _Begun | Prepared:
        if "pool" in row:
            return self._pooling(row, row["pool"])
        self._session.intake.check()
        if "sound" in row:
            return self._hearing(row)
        params = self._shared.read(row["params"])
        params.output_kind = (
            RequestOutputKind.DELTA if row.get("stream") else RequestOutputKind.FINAL_ONLY
        )
        if "messages" in row and "skip_special_tokens" not in row["params"]:
            # Where special tokens mark channels, the text must have them to be parsed.
            params.skip_special_tokens = not self.tokenizer.marks_channels
        search = None
        if "beam" in row:
            search, params = self._searching(params, row["beam"])
        return _Begun(row, params, search, self._text_of(row, params))

    def _finish(self, begun: _Begun, ids: Ints | None) -> Prepared:
        row, params = begun.row, begun.params
        if ids is not None and not len(ids):
            raise InvalidPrompt("the prompt gives no tokens at all", parameter="prompt")
        prompt = self._prompt(row, begun.text, ids)
        if salt := row.get("salt"):
            prompt["cache_salt"] = salt
        if "messages" in row and params.structured_outputs is not None:
            tag = self._session.model.config.reasoning_parser
            params.structured_outputs = after_thoughts(
                params.structured_outputs, prompt["prompt"], self.tokenizer, tag
            )
        return Prepared(prompt, params, search=begun.search)

    def _searching(
        self, given: SamplingParams, beam: Message
    ) -> tuple[BeamSearchParams, SamplingParams]:
        """A beam search; as for other requests the room that is left limits its length, and its
        text has no special tokens."""
        session = self._session
        search = BeamSearchParams(
            given.n,
            given.max_tokens or session.model.config.max_model_len,
            given.ignore_eos,
            include_stop_str_in_output=given.include_stop_str_in_output,
            structured_outputs=given.structured_outputs,
            **beam,
        )
        facts = session.model.facts
        search = checked_search(search, facts.num_blocks // len(facts.windows))
        refuse_processors(bool(session.model.config.batch_processors))
        common = search_sampling(search)
        for name in ("max_tokens", "skip_special_tokens", "truncate_prompt_tokens"):
            setattr(common, name, getattr(given, name))
        return search, common

    def _pooling(self, row: Message, wanted: Message) -> Prepared:
        names = ("task", "dimensions", "use_activation", "truncate_prompt_tokens")
        params = PoolingParams(**{name: wanted[name] for name in names if name in wanted})
        pooling, prompt, pair = self._session.pooling, row["prompt"], wanted.get("pair")
        [asked] = pooling.asked(params, pooling.check(str(params.task)), 1)
        if isinstance(prompt, str):
            prompt = self._part_to_pool(prompt, params.truncate_prompt_tokens)
        else:
            prompt = {"prompt_token_ids": prompt}
        if pair is not None:
            pair = self._part_to_pool(pair, params.truncate_prompt_tokens)
        given = PoolingPrompt(prompt, wanted.get("prompt_name"), pair, row.get("salt", ""))
        kwargs = {name: wanted[name] for name in ("add_special_tokens",) if name in wanted}
        return Prepared(given, params, kwargs, partial(pooling.pooled, asked=asked))

    def _hearing(self, row: Message) -> Prepared:
        """The next request for a piece of a sound, which may take several."""
        hearing = row.get("hearing")
        if hearing is None:
            wanted = wanted_of(row["hear"])
            self.transcriber.check(wanted)
            hearing = self.transcriber.begin(wanted, row["sound"], row.get("seed"))
        prompt, params = self.transcriber.asked(hearing)
        params = copy(params)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        if salt := row.get("salt"):
            prompt["cache_salt"] = salt
        return Prepared(prompt, params, hearing=hearing)

    def prompt_of(self, row: Message) -> dict[str, Any]:
        """The whole prompt as token ids, with its text if it has one."""
        text, ids = self._text_of(row, None), None
        if text is not None:
            [ids] = self._encode([text])
        if isinstance(ids, QuireError):
            raise ids
        prompt = self._prompt(row, text, ids)
        return prompt if ids is None else {**prompt, "prompt_token_ids": ids.tolist()}

    def _prompt(self, row: Message, text: _Text | None, ids: Ints | None) -> dict[str, Any]:
        if text is None or ids is None:
            return {"prompt_token_ids": row["prompt"], **self._text_back(row)}
        chat = text.chat
        return {"prompt_token_ids": ids, "prompt": chat.text, **self._media(chat)}

    def _text_of(self, row: Message, params: SamplingParams | None) -> _Text | None:
        """The text to encode, cut as the parameters say, or whole without parameters; None for a
        prompt of token ids."""
        if "messages" in row:
            chat = render_conversation(row["messages"], self.tokenizer, **row.get("chat", {}))
            add = bool(row.get("add_special_tokens", False))
        elif isinstance(row["prompt"], str):
            chat, add = ChatText(row["prompt"]), bool(row.get("add_special_tokens", True))
        else:
            return None
        check_text(chat.text)
        if params is None:
            _refuse_long(chat.text)
            return _Text(chat, chat, add)
        return self._fitting(chat, add, params)

    def _fitting(self, chat: ChatText, add: bool, params: SamplingParams) -> _Text:
        """A text that is cut as the parameters say, or that was checked not to be far too long."""
        most, keep = self._session.model.config.max_model_len, params.truncate_prompt_tokens
        keep = most if keep is None else num_kept(keep, params.max_tokens, most)
        if keep >= most or chat.media is not None:  # media are not cut
            refuse_far_too_long(chat.text, self.tokenizer, most)
            return _Text(chat, chat, add)
        part = kept_part(chat.text, keep, self._encode_part)
        return _Text(chat, chat.since(part.start), add, keep)

    def _encode_part(self, text: str) -> Ints:
        return self.tokenizer.encode(text, False)

    def _part_to_pool(self, text: str, truncate_prompt_tokens: int | None) -> str:
        """The beginning of a text that will be cut: the rest need not be encoded."""
        most = self._session.model.config.max_model_len
        if truncate_prompt_tokens is None:
            refuse_far_too_long(text, self.tokenizer, most)
            return text
        keep = most if truncate_prompt_tokens == -1 else min(truncate_prompt_tokens, most)
        return text[kept_part(text, keep, self._encode_part, of_start=True)]

    def _media(self, chat: ChatText) -> dict[str, Any]:
        """The media of a prompt, read here and not on the engine's thread. Callers cannot name
        media, since the names of one key would be known to others."""
        reader = self._session.media.reader
        if chat.media is None or reader is None:
            return {}
        return {"multi_modal_data": reader.looked_at(chat.media).given.data}

    def _encode(self, texts: Sequence[_Text]) -> list[Ints | QuireError]:
        """The ids of each text, cut where asked for, or its error."""
        found: dict[int, Ints | QuireError] = {}
        for add in (False, True):
            at = [i for i, text in enumerate(texts) if text.add_special_tokens is add]
            if at:
                some = self.tokenizer.encode_each([texts[i].part for i in at], add)
                found |= zip(at, some, strict=True)
        return [self._kept(text, found[i]) for i, text in enumerate(texts)]

    def _kept(self, text: _Text, ids: Ints | QuireError) -> Ints | QuireError:
        if text.keep is None or isinstance(ids, QuireError):
            return ids
        return kept_end(ids, text.keep, self.tokenizer.bos_id if text.add_special_tokens else None)

    def _text_back(self, row: Message) -> dict[str, Any]:
        """The text of a prompt of token ids, if `echo` wants it before the answer."""
        ids = row["prompt"]
        if not row.get("prompt_back") or self._session.model.tokenizer is None:
            return {}
        vocabulary = self._session.model.spec.vocab_size
        if not all(0 <= token < vocabulary for token in ids):
            return {}  # such ids are refused later, with all other checks of prompts
        return {"prompt": self.tokenizer.decode(ids, skip_special_tokens=False)}


def _refuse_long(text: str) -> None:
    if len(text) > LONGEST_COUNTED:
        raise InvalidPrompt(
            f"the text has {len(text):,} characters; up to {LONGEST_COUNTED:,} are made into "
            "tokens here, which takes seconds: send it in parts",
            parameter="prompt",
        )
