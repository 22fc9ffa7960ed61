"""Which rows go token by token, because each draw depends on the token before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from quire.config import EngineConfig
from quire.params.row_sampling import can_forbid, forbids_by_bias, lists_few, penalises
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.steps.automata import NO_TOKEN, WalkableGrammar
from quire.steps.row_schema import STOP_COLUMNS

MANY_LOGPROBS = 256  # of a position; more are sent to the host for one step at a time only


class Jump(IntEnum):
    """Whether a row gets the tokens that its grammar forces without drawing them."""

    NEVER = 0
    ALWAYS = 1
    IF_WORTH = 2  # only where that saves time; drawn, they would be the same tokens


@dataclass(frozen=True, slots=True)
class Pacing:
    """For which rows the host takes part in every draw, whatever the request asks for: `logprobs`,
    rows that want logprobs (these are of processed logits); `every_row`, as logits processors see
    all rows. `goes_back`: a row's last tokens can be taken back, so it may try ahead. `apart`:
    slices are a pass of their own, so forced tokens are given as slices only where that pays."""

    logprobs: bool = False
    every_row: bool = False
    goes_back: bool = True
    apart: bool = False

    @staticmethod
    def in_engine(config: EngineConfig) -> Pacing:
        return Pacing(
            logprobs=not config.logprobs_mode.startswith("raw_"),
            every_row=bool(config.batch_processors),
            goes_back=not config.keeps_states,
            apart=config.device == "cuda",
        )

    def of(self, sequence: Sequence) -> bool:
        """Whether the host takes part in each draw other than by a mask: by choosing among a beam's
        candidates, by processors, or because no device column holds what the draw depends on."""
        return self.every_row or sequence.group is not None or self._edits(sequence)

    def may_try(self, sequence: Sequence) -> bool:
        """Whether the host only edits the logits of this one row, so that the device can draw
        ahead without the edits (trials.py)."""
        chosen = self.every_row or sequence.group is not None or sequence.guide is not None
        return self.goes_back and not chosen and self._edits(sequence)

    def may_go_ahead(self, sequence: Sequence) -> bool:
        """Whether a row that draws with masks may go on without them (ahead.py): if its draws are
        allowed they are what it would draw with masks, and the device can take tokens back."""
        params = sequence.request.params
        phrases = any(len(word) > 1 for word in params._bad_words_token_ids or ())
        remembers = penalises(params) or phrases or sequence.thoughts is not None
        return self.apart and self.goes_back and not remembers

    def jump(self, sequence: Sequence) -> Jump:
        """Whether a row that follows a grammar by masks is given the tokens that it forces. These
        come whatever else the row asks for, so a row that might forbid them does not draw them."""
        if sequence.guide is None or not sequence.guide.may_force:
            return Jump.NEVER
        return Jump.IF_WORTH if self.apart and not _may_forbid(sequence.request) else Jump.ALWAYS

    def _edits(self, sequence: Sequence) -> bool:
        """Whether the sampler draws for a row, because of what its request asks for."""
        request, params = sequence.request, sequence.request.params
        words, (_, not_first) = params._bad_words_token_ids or (), params._suppressed_token_ids
        return (
            bool(request.processors)
            or (self.logprobs and params.num_logprobs is not None)
            or not can_forbid(words, not_first, params.min_tokens)
        )


def walkable_of(sequence: Sequence) -> WalkableGrammar | None:
    """The sequence's grammar, if a device can follow it by itself and its columns can hold what the
    row asks for besides (whether there is room is asked later). A token that the grammar forces may
    be forbidden by nothing else: the host gives it to a row without drawing it."""
    guide, request = sequence.guide, sequence.request
    is_judged = sequence.watch is not None or request.params.detects_repetition  # by its text
    if guide is None or is_judged:
        return None
    grammar, params = guide.walkable, request.params
    too_many = len(request.eos_ids | request.stop_ids) > STOP_COLUMNS
    if grammar is None or too_many or not lists_few(params):
        return None
    listed = params._bad_words_token_ids or any(params._suppressed_token_ids)
    listed = listed or forbids_by_bias(params)
    forbids = listed or (params.min_tokens and request.stop_ids)
    return None if forbids and (grammar.forced != NO_TOKEN).any() else grammar


def _may_forbid(request: Request) -> bool:
    params = request.params
    return bool(
        request.processors
        or params._bad_words_token_ids
        or params.allowed_token_ids is not None
        or forbids_by_bias(params)
        or any(params._suppressed_token_ids)
        or (params.min_tokens and (request.stop_ids or request.eos_ids))
    )


def brings_much(params: SamplingParams) -> bool:
    """Whether each token of a row sends very many logprobs to the host."""
    num_logprobs = params.num_logprobs or 0
    return num_logprobs < 0 or num_logprobs > MANY_LOGPROBS
