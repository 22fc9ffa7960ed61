"""Requests that need only the tokenizer: texts to tokens and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidPrompt, NotSupported
from quire.replicas.wire import Message
from quire.server.child.preparing import Preparing
from quire.server.wire import Detokenized, Tokenized, TokenizerInfo

if TYPE_CHECKING:
    from quire.session.session import Session


class Calls:
    """Answers {"kind": "call", "what": ..., ...} with a value."""

    def __init__(self, session: Session, preparing: Preparing) -> None:
        self._session, self._preparing = session, preparing

    def answer(self, message: Message) -> Mapping[str, Any]:
        if message["what"] == "tokenize":
            return self._tokenize(message["row"], strings=message["strings"])
        if message["what"] == "detokenize":
            return self._detokenize(message["tokens"])
        tokenizer = self._preparing.tokenizer
        info: TokenizerInfo = {
            "vocab_size": self._session.model.spec.vocab_size,
            "max_model_len": self._session.model.config.max_model_len,
            "special_tokens": tokenizer.special_tokens,
            "eos_token_ids": list(tokenizer.eos_ids),
            "chat_template": tokenizer.chat_template,
        }
        # With the names of tokenizer_config.json; lm-eval reads eos_token.
        return {**tokenizer.special_tokens, **info}

    def _tokenize(self, row: Message, *, strings: bool) -> Tokenized:
        prompt = self._preparing.prompt_of(row)
        if "multi_modal_data" in prompt:
            raise NotSupported(
                "tokens of media are not counted here; usage of an answer has them all"
            )
        ids = prompt["prompt_token_ids"]
        tokenizer = self._preparing.tokenizer
        return {
            "count": len(ids),
            "max_model_len": self._session.model.config.max_model_len,
            "tokens": ids,
            "token_strs": [tokenizer.token_text(token) for token in ids] if strings else None,
        }

    def _detokenize(self, tokens: list[int]) -> Detokenized:
        vocabulary = self._session.model.spec.vocab_size
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise InvalidPrompt(
                    f"tokens are ids from 0 to {vocabulary - 1}, not {token}", parameter="tokens"
                )
        return {"prompt": self._preparing.tokenizer.decode(tokens, skip_special_tokens=False)}
