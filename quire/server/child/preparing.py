"""Rows -> prompts as token ids, and parameters. Knows no threads: any may call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidPrompt, NotSupported, QuireError
from quire.inputs.chat import render_conversation
from quire.inputs.quoting import ChatText
from quire.inputs.tokenizer import Tokenizer, check_text
from quire.jobs.child.requests import refuse_far_too_long, sampling_params
from quire.replicas.wire import Message
from quire.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from quire.request import Ints
    from quire.session.session import Session


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row, ready for the engine."""

    prompt: dict[str, Any]
    params: SamplingParams


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
        params = sampling_params(row["params"])
        params.output_kind = (
            RequestOutputKind.DELTA if row.get("stream") else RequestOutputKind.FINAL_ONLY
        )
        may_be_cut = params.truncate_prompt_tokens is not None
        prompt = self.prompt_of(row, may_be_cut=may_be_cut)
        if salt := row.get("salt"):
            prompt["cache_salt"] = salt
        return Prepared(prompt, params)

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
        return {"prompt_token_ids": ids.tolist(), "prompt": chat.text}

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
