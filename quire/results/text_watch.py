"""The text of an answer while it is written: where a stop string cuts it, and what was shown."""

from __future__ import annotations

from collections.abc import Sequence

from quire.inputs.detokenize import Detokenizer
from quire.inputs.tokenizer import Tokenizer
from quire.logprobs import MadeDicts
from quire.outputs import CompletionOutput, RequestOutput
from quire.request import Request
from quire.results.stop_strings import StopMatch, StopStrings
from quire.sampling_params import RequestOutputKind
from quire.scheduler.reports import Grown
from quire.step import Scores


class StopWatch:
    """Follows one answer's text as it is written, and finds where a stop string cuts it.

    What `shown` returns only ever grows, and what `text` returns begins with it.
    """

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        params = request.params
        self._stops = StopStrings(params.stop or (), params.include_stop_str_in_output)
        self._text = _detokenizer(tokenizer, request)
        self._pieces: list[str] = []
        self._num_tokens, self._min_tokens = 0, params.min_tokens
        self._match: StopMatch | None = None

    def follow(self, token_ids: list[int]) -> tuple[int, str] | None:
        # Tokens before `min_tokens` add to the text, but a stop string that ends there is ignored.
        early = max(self._min_tokens - 1 - self._num_tokens, 0)
        self._num_tokens += len(token_ids)
        if early:
            self._pieces.append(self._text.push(token_ids[:early]))
            self._stops.skip(self._pieces[-1])
            token_ids = token_ids[early:]
        before, num_before = self._text.place, self._stops.num_fed
        self._pieces.append(self._text.push(token_ids))
        found = self._match = self._stops.feed(self._pieces[-1])
        if found is None:
            return None
        missing = found.ends_at - num_before
        return early + self._text.num_completing(before, token_ids, missing), found.stop

    @property
    def is_cut(self) -> bool:
        """Whether a stop string was found."""
        return self._match is not None

    def shown(self) -> str:
        """The text so far, without what may still become part of a stop string."""
        text = self._joined()
        return text[: len(text) - self._stops.num_open()]

    def text(self) -> str:
        """The whole text of an answer that ended, cut where a stop string was found."""
        if self._match is not None:
            return self._joined()[: self._match.cut_at]
        self._pieces.append(self._text.finish())
        return self._joined()

    def _joined(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class Shown:
    """How many tokens and characters of each sample the reader of a watched request was shown."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self._request = request
        self._tokenizer = tokenizer if request.params.detokenize else None
        # For samples without stop strings: their text is decoded when it is shown.
        self._readers: dict[int, Detokenizer] = {}
        self._whole: dict[int, str] = {}
        self.only_new = request.watched and request.params.output_kind is RequestOutputKind.DELTA
        self._tokens: dict[int, int] = {}
        self._characters: dict[int, int] = {}
        self._totals: dict[int, tuple[int, float]] = {}  # parts counted, and their sum
        self._made: dict[int, MadeDicts] = {}

    def num_tokens(self, sample: int) -> int:
        return self._tokens.get(sample, 0)

    def total_logprob(self, sample: int, parts: Sequence[Scores]) -> float:
        """The sum over all tokens so far; `parts` only grows from call to call."""
        counted, total = self._totals.get(sample, (0, 0.0))
        total += sum(sum(part.logprobs.tolist()) for part in parts[counted:])
        self._totals[sample] = len(parts), total
        return total

    def made_dicts(self, sample: int) -> MadeDicts | None:
        """Where the sample's dicts are kept after they were read; None if each output has only
        those of new tokens."""
        return None if self.only_new else self._made.setdefault(sample, MadeDicts())

    def text(self, grown: Grown) -> str:
        """The text shown of an answer that goes on: all of it so far, or only what is new."""
        watch, sample = grown.sequence.watch, grown.sequence.sample
        if isinstance(watch, StopWatch):
            return self.part(sample, watch.shown())
        if self._tokenizer is None:
            return ""
        reader = self._readers.get(sample)
        if reader is None:
            reader = self._readers[sample] = _detokenizer(self._tokenizer, self._request)
        new = reader.push(grown.output_ids[self.num_tokens(sample) :])
        if self.only_new:
            self._characters[sample] = self._characters.get(sample, 0) + len(new)
            return new
        whole = self._whole[sample] = self._whole.get(sample, "") + new
        return whole

    def part(self, sample: int, text: str) -> str:
        """The part of a sample's whole text that the reader is shown now."""
        before, self._characters[sample] = self._characters.get(sample, 0), len(text)
        return text[before:] if self.only_new else text

    def count(self, sample: int, num_tokens: int) -> None:
        """Note that the reader was shown so many tokens of a sample."""
        self._tokens[sample] = num_tokens

    def last(self, output: RequestOutput) -> RequestOutput:
        """The finished output in the form the reader wants."""
        if self.only_new:
            output.outputs = [self._rest(answer) for answer in output.outputs]
        return output

    def _rest(self, answer: CompletionOutput) -> CompletionOutput:
        sample, rest = answer.index, answer.since(self.num_tokens(answer.index))
        self.count(sample, len(answer.token_ids))
        rest.text = self.part(sample, answer.text)
        return rest


def _detokenizer(tokenizer: Tokenizer, request: Request) -> Detokenizer:
    params = request.params
    return Detokenizer(
        tokenizer,
        request.plain_ids,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )
