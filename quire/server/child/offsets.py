"""Where the text of each token of an answer begins in the text that is returned."""

from __future__ import annotations

from collections.abc import Sequence

from quire.inputs.detokenize import Detokenizer
from quire.inputs.tokenizer import Tokenizer
from quire.sampling_params import SamplingParams


class TextOffsets:
    """Follows the answers of one row. A character that is split over tokens belongs to the last of
    them: with byte tokens after "x", the three of "√" and then "y" are at 1, 1, 1 and 2. Special
    tokens that are left out of the text take no room in it, and bytes that are no character take
    that of U+FFFD. A stop string may cut the text before the last of these places."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer, self._params = tokenizer, params
        self._texts: dict[int, tuple[Detokenizer, int]] = {}  # by answer; and its length so far

    def of(self, sample: int, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        """The offsets of the answer's next tokens."""
        text, length = self._texts.get(sample) or (self._detokenizer(prompt_ids), 0)
        offsets = []
        for token in token_ids:
            offsets.append(length)
            length += len(text.push([token]))
        self._texts[sample] = text, length
        return offsets

    def _detokenizer(self, prompt_ids: Sequence[int]) -> Detokenizer:
        return Detokenizer(
            self._tokenizer,
            prompt_ids,
            skip_special_tokens=self._params.skip_special_tokens,
            spaces_between_special_tokens=self._params.spaces_between_special_tokens,
        )


def offsets_wanted(tokenizer: Tokenizer | None, params: SamplingParams) -> TextOffsets | None:
    """The offsets of a completion's answers; None where it has no logprobs or no text."""
    if tokenizer is None or params.num_logprobs is None or not params.detokenize:
        return None
    return TextOffsets(tokenizer, params)
