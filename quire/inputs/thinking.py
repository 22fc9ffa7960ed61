"""thinking_token_budget: the tags that open and end the thoughts of an answer, to limit their
number of tokens. An answer has thoughts at its beginning or none, as in reasoning.py."""

from __future__ import annotations

from quire.errors import InvalidParams, NotSupported
from quire.inputs.channels import CHANNEL
from quire.inputs.detokenize import marked_text
from quire.inputs.reasoning import pairs
from quire.inputs.tokenizer import Tokenizer
from quire.params.reasoning import ReasoningConfig
from quire.request import Ints, ThoughtLimit
from quire.sampling_params import SamplingParams

# Tokens at the end of a prompt that may be what opens thoughts, and white space behind it.
_LAST = 32


class ThoughtReader:
    """Makes the thought limits of requests, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, tag: str, config: ReasoningConfig) -> None:
        """`tag` is as in split_reasoning; `config` overrides it."""
        self._tokenizer, self._config, self._in_channels = tokenizer, config, tag == CHANNEL
        start, end = config.reasoning_start_str, config.reasoning_end_str
        known = ((start, config.closing(start)),) if start else pairs(tag)
        self._known = [pair for pair in known if not end or end.endswith(pair[1])]
        self._pairs = [p for p in self._known if tag or start or self._is_marked(*p)]
        self.bounds = bool(self._pairs) and not self._in_channels  # budgets mean something

    def _is_marked(self, opening: str, closing: str) -> bool:
        """Whether the model has both as tokens, and its chat template names them."""
        if self._tokenizer is None or opening not in (self._tokenizer.chat_template or ""):
            return False
        token_to_id = self._tokenizer.backend.token_to_id
        return token_to_id(opening) is not None and token_to_id(closing) is not None

    def limit(self, params: SamplingParams, prompt_ids: Ints) -> ThoughtLimit | None:
        """The limit; None if there is no budget, or if the prompt has closed the thoughts."""
        budget, tokenizer = params.thinking_token_budget, self._tokenizer
        if budget is None:
            return None
        self._check(params)
        if tokenizer is None:
            raise _refusal("is about text", "the tokenizer was left out (skip_tokenizer_init=True)")
        before = marked_text(tokenizer, [], prompt_ids[-_LAST:]).rstrip()
        for opening, closing in self._known:
            if before.endswith(opening):
                return self._made(tokenizer, budget, opening, closing, opened=True)
        if not self._pairs:
            raise _refusal(
                "needs a model that marks its thoughts",
                "neither the prompt nor the chat template has a tag that opens them; name it in "
                "LLM(reasoning_parser=...) or LLM(reasoning_config=...)",
            )
        if before.endswith(tuple(closing for _, closing in self._pairs)):
            return None
        return self._made(tokenizer, budget, *self._pairs[0], opened=False)

    def _check(self, params: SamplingParams) -> None:
        if self._in_channels:
            raise NotSupported(
                "thinking_token_budget of a model that thinks in channels is not built: set "
                "reasoning_effort in chat_template_kwargs, or bound the answer by max_tokens."
            )
        if params.structured_outputs is not None:
            raise NotSupported(
                "thinking_token_budget with structured_outputs is not built: leave one of them out."
            )

    def _made(
        self, tokenizer: Tokenizer, budget: int, opening: str, closing: str, *, opened: bool
    ) -> ThoughtLimit:
        end = self._config.reasoning_end_str or closing
        forced = tokenizer.encode(end, add_special_tokens=False)
        return ThoughtLimit(budget, opening, closing, tuple(forced.tolist()), opened)


def _refusal(rule: str, why: str) -> InvalidParams:
    return InvalidParams(
        f"thinking_token_budget {rule}, and {why}", parameter="thinking_token_budget"
    )
