"""RequestMaker: makes Requests of everything that a caller may pass; later code does not check them
again.

Each prompt gives a Request, or an error that names the broken rule; a bad prompt does not affect
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.errors import (
    InvalidParams,
    InvalidPrompt,
    PromptTooLong,
    QuireError,
)
from quire.inputs import known_tokens
from quire.inputs.choices import ChoiceReader
from quire.inputs.encoder_prompts import as_one_prompt
from quire.inputs.media.expanding import Grown, PlacedItem
from quire.inputs.media.reader import CallMedia, MediaReader
from quire.inputs.packing import packed_prompts
from quire.inputs.parse import (
    ParsedPrompt,
    is_single,
    merge_prompts,
    naming_prompt,
    parse_prompt,
    result_or_error,
    split_prompts,
)
from quire.inputs.quoting import ChatText
from quire.inputs.shortening import kept_end, num_kept
from quire.inputs.thinking import ThoughtReader
from quire.inputs.tokenization import Encoding, read_tokenization
from quire.inputs.tokenizer import Tokenizer
from quire.params.forbidden import check_some_token_left
from quire.params.reasoning import ReasoningConfig
from quire.request import Choices, Ints, Request
from quire.sampling.keys import noise_key, noise_keys_for
from quire.sampling_params import SamplingParams

__all__ = [
    "Encoding",
    "RequestMaker",
    "is_single",
    "merge_prompts",
    "read_tokenization",
    "split_prompts",
]

_NO_TOKENIZER = "the tokenizer was left out (skip_tokenizer_init=True); "


class PromptWithMedia(ParsedPrompt, frozen=True, eq=False):
    """A prompt whose text, if it has one, includes the placeholder texts of its media."""

    grown_text: str = ""
    items: tuple[PlacedItem, ...] = ()

    @property
    def chat_text(self) -> ChatText:
        return ChatText(self.grown_text, self.literal)


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The values of a SamplingParams for this model, computed once for all prompts that have it."""

    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    choices: Choices | None = None


class RequestMaker:
    """Makes the requests of one LLM.

    `pool_tokens` is what the whole KV pool holds. `eos_ids` end an answer without a stop reason;
    `more_eos_ids`, which a generation_config adds, are named as if the caller had asked for them.
    `processors` says which functions edit a request's logits; by default those it names itself.
    `edits_logits`: the LLM has processors for every row beside them. `media` reads those of
    prompts; None: text alone is read. `suppressed` are tokens that no answer has, and tokens that
    none begins with. `thoughts` reads what bounds them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        pool_tokens: int,
        eos_ids: Iterable[int] = (),
        more_eos_ids: Iterable[int] = (),
        llm_seed: int = 0,
        max_logprobs: int = -1,
        processors: Callable[[SamplingParams], tuple[Callable[..., Any], ...]] | None = None,
        edits_logits: bool = False,
        media: MediaReader | None = None,
        suppressed: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
        thoughts: ThoughtReader | None = None,
    ) -> None:
        self._tokenizer, self._media, self._suppressed = tokenizer, media, suppressed
        self._processors = processors or (lambda params: tuple(params.logits_processors or ()))
        self._vocab_size, self._max_model_len = vocab_size, max_model_len
        self._pool_tokens, self._llm_seed = pool_tokens, llm_seed
        # Some files name tokens beyond the vocabulary, which are never drawn.
        self._eos_ids = frozenset(int(i) for i in eos_ids if i < vocab_size)
        self._more_eos_ids = frozenset(int(i) for i in more_eos_ids if i < vocab_size)
        self._max_logprobs = max_logprobs
        self._thoughts = thoughts or ThoughtReader(tokenizer, "", ReasoningConfig())
        self._choices = ChoiceReader(
            tokenizer,
            vocab_size=vocab_size,
            most_tokens=min(max_model_len, pool_tokens),
            edits_logits=edits_logits,
        )

    def make(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        *,
        first_number: int,
        first_index: int = 0,
        priorities: Sequence[int] | None = None,
        arrival: float = 0.0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        media_options: Mapping[str, Any] | None = None,
        wanted: Callable[[str | None, SamplingParams], Mapping[str, Any]] = lambda text, params: {},
    ) -> list[Request | QuireError]:
        """A request, or what is wrong, for each prompt in order.

        `params` are private copies, one for each prompt (the same object may serve several).
        Request i gets number first_number + i; an error names index first_index + i.
        A prompt that is an error already (a chat that could not be rendered) is passed on.
        `wanted` gives further fields of a Request: what is wanted of its answer.
        """
        encoding = read_tokenization(tokenization_kwargs)
        parsed = [
            p if isinstance(p, QuireError) else result_or_error(self._parsed, p, packed)
            for p, packed in zip(prompts, packed_prompts(prompts, self._vocab_size), strict=True)
        ]
        if self._media is not None:
            with self._media.for_call(media_options or {}) as call:
                parsed = self._with_media(self._media, call, parsed)
        distinct = {id(each): each for each in params}
        resolved = {key: result_or_error(self._resolve, each) for key, each in distinct.items()}
        encoded = self._encode(parsed, encoding)
        keys = noise_keys_for(self._llm_seed, first_number, len(prompts))
        made: list[Request | QuireError] = []
        for i, (prompt, ids) in enumerate(zip(parsed, encoded, strict=True)):
            meaning = resolved[id(params[i])]
            result = _first_error(prompt, ids, meaning)
            if result is None:
                given = prompt, ids, params[i], meaning, encoding
                about = first_number + i, keys[i], priorities[i] if priorities else 0, arrival
                result = result_or_error(self._request, *given, *about, wanted)
            is_new = isinstance(result, QuireError) and result is not prompts[i]
            made.append(naming_prompt(result, first_index + i) if is_new else result)
        return made

    def look(self, given: Any) -> QuireError | None:
        """Fetch a prompt's media and read their headers, on any thread, so that `make` need not
        wait. Returns their error, if there is one."""
        wrong = result_or_error(self._looked_at, given)
        return naming_prompt(wrong, 0) if isinstance(wrong, QuireError) else None

    def _looked_at(self, given: Any) -> None:
        prompt = self._parsed(given)
        if self._media is not None and prompt.media is not None:
            self._media.looked_at(prompt.media)

    def _parsed(self, given: Any, packed: Ints | None = None) -> ParsedPrompt:
        media = self._media
        if media is not None and media.crossed:
            given, packed = as_one_prompt(given), None
        return parse_prompt(given, self._vocab_size, with_media=media is not None, packed=packed)

    def _with_media(
        self, media: MediaReader, call: CallMedia, parsed: Sequence[ParsedPrompt | QuireError]
    ) -> list[ParsedPrompt | QuireError]:
        """The prompts of a call with their media read."""
        call.look_ahead([p.media for p in parsed if isinstance(p, ParsedPrompt) and p.media])
        grown = partial(self._grown_by_media, media, call)
        return [p if isinstance(p, QuireError) else result_or_error(grown, p) for p in parsed]

    def _grown_by_media(
        self, media: MediaReader, call: CallMedia, prompt: ParsedPrompt
    ) -> ParsedPrompt:
        if prompt.media is None:
            ids = prompt.token_ids
            media.check_no_media(prompt.chat_text if ids is None else ids)
            return prompt
        items = tuple(call.read(prompt.media))
        text = prompt.chat_text
        if prompt.token_ids is None:
            text, items = media.grow_text(text, items)
        return PromptWithMedia(
            prompt.text,
            prompt.token_ids,
            prompt.cache_salt,
            text.literal,
            grown_text=text.text,
            items=items,
        )

    def _resolve(self, params: SamplingParams) -> _Resolved:
        known_tokens.check_vocabulary(params, self._vocab_size, max_logprobs=self._max_logprobs)
        params._suppressed_token_ids = self._suppressed
        if self._tokenizer is None:
            for name in ("stop", "bad_words", "structured_outputs"):
                if getattr(params, name):
                    raise InvalidParams(
                        f"{name} is about text, and {_NO_TOKENIZER}"
                        "use stop_token_ids or logit_bias",
                        parameter=name,
                        value=getattr(params, name),
                    )
            params.detokenize = False
        elif params.bad_words:
            params._bad_words_token_ids = known_tokens.bad_word_ids(
                self._tokenizer, params.bad_words, self._vocab_size
            )
        eos_ids, stop_ids = self._eos_ids, frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            stop_ids = (stop_ids | self._more_eos_ids) - eos_ids
        elif params.structured_outputs is None:
            eos_ids = frozenset()  # after a grammar's text nothing but an end token may follow
        check_some_token_left(params, eos_ids | stop_ids, self._vocab_size)
        return _Resolved(eos_ids, stop_ids, self._choices.read(params))

    def _encode(
        self, parsed: Sequence[ParsedPrompt | QuireError], encoding: Encoding
    ) -> list[Ints | QuireError | None]:
        """Token ids of each good prompt; the texts among them are encoded together."""
        ids: list[Ints | QuireError | None] = [None] * len(parsed)
        texts: list[tuple[int, ChatText]] = []
        for i, prompt in enumerate(parsed):
            if isinstance(prompt, QuireError):
                continue
            if prompt.token_ids is not None:
                ids[i] = prompt.token_ids
            elif self._tokenizer is None:
                ids[i] = InvalidPrompt(
                    f"the prompt is text, and {_NO_TOKENIZER}pass token ids", parameter="prompt"
                )
            else:
                texts.append((i, prompt.chat_text))
        if self._tokenizer is not None and texts:
            crossed = self._media is not None and self._media.crossed  # begin with their own
            encoded = self._tokenizer.encode_each(
                [text for _, text in texts], encoding.add_special_tokens and not crossed
            )
            check = known_tokens.check_encoded
            for (i, _), row in zip(texts, encoded, strict=True):
                ids[i] = row if isinstance(row, QuireError) else check(row, self._vocab_size)
        return ids

    def _request(
        self,
        prompt: ParsedPrompt,
        ids: Ints,
        params: SamplingParams,
        meaning: _Resolved,
        encoding: Encoding,
        number: int,
        key: int,
        priority: int,
        arrival: float,
        wanted: Callable[[str | None, SamplingParams], Mapping[str, Any]],
    ) -> Request:
        grown = self._grown(prompt, ids) if isinstance(prompt, PromptWithMedia) else None
        if grown is not None:
            ids = grown.prompt_ids
        ids = self._truncated(prompt, ids, params, encoding)
        num_media = 0 if grown is None else grown.num_media
        known_tokens.check_length(len(ids), num_media, self._max_model_len, self._pool_tokens)
        known_tokens.check_prompt_logprobs(len(ids), params, self._vocab_size)
        processors = self._processors(params)
        choices = self._choices.for_request(meaning.choices, params, len(ids), processors)
        room = 0 if choices is not None else self._max_model_len - len(ids)
        return Request(
            number=number,
            prompt_ids=ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            noise_key=key if params.seed is None else noise_key(params.seed),
            eos_ids=meaning.eos_ids,
            stop_ids=meaning.stop_ids,
            prompt=prompt.text,
            priority=priority,
            arrival=arrival,
            cache_salt=prompt.cache_salt,
            thoughts=self._thoughts.limit(params, ids if grown is None else grown.plain_ids),
            processors=processors,
            continuations=() if choices is None else choices.token_ids,
            choices=choices,
            media=() if grown is None else grown.spans,
            with_placeholders=None if grown is None else grown.plain_ids,
            coordinates=None if grown is None else grown.coordinates,
            delta=0 if grown is None else grown.delta,
            heard=None if grown is None else grown.heard,
            named=known_tokens.named_tokens(len(ids), params),
            **wanted(prompt.text, params),
        )

    def _grown(self, prompt: PromptWithMedia, ids: Ints) -> Grown | None:
        if self._media is None:
            return None
        return self._media.grow_ids(ids, prompt.items, from_text=prompt.token_ids is None)

    def _truncated(
        self, prompt: ParsedPrompt, ids: Ints, params: SamplingParams, encoding: Encoding
    ) -> Ints:
        """At most as many tokens as asked for; the end of the prompt is kept, and the beginning
        token that the tokenizer put before a text."""
        keep = encoding.truncate_prompt_tokens or params.truncate_prompt_tokens
        if keep is None:
            return ids
        keep = num_kept(keep, params.max_tokens, self._max_model_len)
        if len(ids) <= keep:
            return ids
        if isinstance(prompt, PromptWithMedia):
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens with its media, and truncate_prompt_tokens "
                f"keeps {keep}; media are not cut. Shorten the text, or pass smaller media",
                parameter="truncate_prompt_tokens",
                value=keep,
            )
        if encoding.keep_start:
            return ids[:keep]
        bos = self._tokenizer.bos_id if self._tokenizer is not None else None
        from_text = prompt.token_ids is None and encoding.add_special_tokens
        return kept_end(ids, keep, bos if from_text else None)


def _first_error(*found: object) -> Any:
    """The first of these that is an error; None if none is."""
    for one in found:
        if isinstance(one, QuireError):
            return one
    return None
