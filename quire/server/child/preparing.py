"""Rows -> prompts as token ids, and parameters. Knows no threads: any may call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidPrompt, NotSupported, QuireError
from quire.inputs.chat import render_conversation
from quire.inputs.quoting import ChatText
from quire.inputs.thoughts import after_thoughts
from quire.inputs.tokenizer import Tokenizer, check_text
from quire.jobs.child.requests import refuse_far_too_long, sampling_params
from quire.outputs import RequestOutput
from quire.params.pooling import PoolingParams
from quire.replicas.wire import Message
from quire.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from quire.session.beams import checked_search, refuse_processors, search_sampling
from quire.session.pooling import PoolingPrompt
from quire.step import Floats

if TYPE_CHECKING:
    from quire.request import Ints
    from quire.session.session import Session

MakePooled = Callable[[RequestOutput], Floats | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row, ready for the engine. `pooled` makes numbers of the output of one that asks for
    them."""

    prompt: dict[str, Any] | PoolingPrompt
    params: SamplingParams | PoolingParams
    tokenization: dict[str, Any] | None = None
    pooled: MakePooled | None = None
    search: BeamSearchParams | None = None


class Preparing:
    """For one model."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = self._session.model.tokenizer
        if tokenizer is None:
            raise NotSupported("text needs a tokenizer, and the engine has none; send token ids")
        return tokenizer

    def prepare(self, row: Message) -> Prepared:
        """The request of a row; raises a QuireError that says what is wrong with it."""
        if "pool" in row:
            return self._pooling(row, row["pool"])
        self._session.intake.check()
        params = sampling_params(row["params"])
        params.output_kind = (
            RequestOutputKind.DELTA if row.get("stream") else RequestOutputKind.FINAL_ONLY
        )
        if "messages" in row and "skip_special_tokens" not in row["params"]:
            # What is told apart by special tokens must show them.
            params.skip_special_tokens = not self.tokenizer.marks_channels
        search = None
        if "beam" in row:
            search, params = self._searching(params, row["beam"])
        may_be_cut = params.truncate_prompt_tokens is not None
        prompt = self.prompt_of(row, may_be_cut=may_be_cut)
        if salt := row.get("salt"):
            prompt["cache_salt"] = salt
        if "messages" in row and params.structured_outputs is not None:
            tag = self._session.model.config.reasoning_parser
            params.structured_outputs = after_thoughts(
                params.structured_outputs, prompt["prompt"], self.tokenizer, tag
            )
        return Prepared(prompt, params, search=search)

    def _searching(
        self, given: SamplingParams, beam: Message
    ) -> tuple[BeamSearchParams, SamplingParams]:
        """A beam search, and what it has in common with other requests: no more length than is
        left, and a text without special tokens."""
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
        pooling, prompt = self._session.pooling, row["prompt"]
        [asked] = pooling.asked(params, pooling.check(str(params.task)), 1)
        if not isinstance(prompt, str):
            prompt = {"prompt_token_ids": prompt}
        given = PoolingPrompt(
            prompt, wanted.get("prompt_name"), wanted.get("pair"), row.get("salt", "")
        )
        kwargs = {name: wanted[name] for name in ("add_special_tokens",) if name in wanted}
        return Prepared(given, params, kwargs, partial(pooling.pooled, asked=asked))

    def prompt_of(self, row: Message, *, may_be_cut: bool = False) -> dict[str, Any]:
        """The prompt as token ids, with its text where it has one."""
        if "messages" in row:
            chat = render_conversation(row["messages"], self.tokenizer, **row.get("chat", {}))
            add = bool(row.get("add_special_tokens", False))
        elif isinstance(row["prompt"], str):
            chat, add = ChatText(row["prompt"]), bool(row.get("add_special_tokens", True))
        else:
            return {"prompt_token_ids": row["prompt"], **self._text_back(row)}
        check_text(chat.text)
        if not may_be_cut:
            max_model_len = self._session.model.config.max_model_len
            refuse_far_too_long(chat.text, self.tokenizer, max_model_len)
        ids = self.encode(chat, add)
        if not len(ids):
            raise InvalidPrompt("the prompt gives no tokens at all", parameter="prompt")
        return {"prompt_token_ids": ids.tolist(), "prompt": chat.text, **self._media(chat)}

    def _media(self, chat: ChatText) -> dict[str, Any]:
        """Media beside a prompt, read here and not on the engine's thread. Names that callers give
        them count for nothing: those of one key would be known to the next."""
        reader = self._session.media.reader
        if chat.media is None or reader is None:
            return {}
        return {"multi_modal_data": reader.fetched(chat.media).data}

    def encode(self, text: ChatText, add_special_tokens: bool) -> Ints:
        [ids] = self.tokenizer.encode_each([text], add_special_tokens)
        if isinstance(ids, QuireError):
            raise ids
        return ids

    def _text_back(self, row: Message) -> dict[str, Any]:
        """The text of token ids, where it is wanted before the answer."""
        ids = row["prompt"]
        if not row.get("prompt_back") or self._session.model.tokenizer is None:
            return {}
        vocabulary = self._session.model.spec.vocab_size
        if not all(0 <= token < vocabulary for token in ids):
            return {}  # refused where all prompts are checked
        return {"prompt": self.tokenizer.decode(ids, skip_special_tokens=False)}
