"""When a sequence ends, and why: end-of-sequence, stop ids, stop strings, length.

Per token, in this order: nothing stops before `min_tokens` outputs exist; then an eos or stop
id, then a stop string, then the end of its grammar, then the length, then repetition. Ids are
judged for all rows at once, as arrays; rows that Python visits anyway (stop strings, grammars, many
stop ids, repetition) are judged one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.request import Ints, Request
from quire.scheduler.repetition import is_repeating
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Guide, Sequence

# Has each guide go on with its token, as `Guide.accept` does, and says which of them could.
AcceptAll = Callable[[Many[Guide], Many[int]], Many[bool]]

# The stop reason of an answer that reached max_tokens in the middle of its grammar.
UNFINISHED = "unfinished_structured_output"
REPEATED = "repetition_detected"


def num_kept(
    rows: Rows, at: Ints, tokens: Ints, counts: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """How many of each row's new tokens it keeps, and whether it ends there.

    tokens [rows, K], of which counts[i] are real. A row of length 9 (limit 12, stop id 2) that
    drew [5, 2, 7] keeps 2 and ends; one that drew [5, 6, 7] keeps 3 and ends, being full.
    """
    num_new = tokens.shape[1]
    lengths = rows.known[at][:, None] + np.arange(1, num_new + 1, dtype=np.int32)  # after each
    real = np.arange(num_new) < counts[:, None]
    is_stop = (tokens[:, :, None] == rows.stop_ids[at][:, None, :]).any(axis=2)
    is_stop &= lengths >= rows.least[at][:, None]
    ends = real & (is_stop | (lengths >= rows.limit[at][:, None]))
    ended = ends.any(axis=1)
    return np.where(ended, ends.argmax(axis=1) + 1, counts).astype(np.int32), ended


def is_stop(request: Request, token_id: int, num_outputs: int) -> bool:
    """`num_outputs` counts this token."""
    if num_outputs < request.params.min_tokens:
        return False
    return token_id in request.eos_ids or token_id in request.stop_ids


def stop_by_id(sequence: Sequence, token_id: int) -> None:
    """It ends with this token. An id the caller asked for is named; end-of-sequence is not."""
    sequence.finish_reason = "stop"
    sequence.stop_reason = token_id if token_id in sequence.request.stop_ids else None


def stop_by_last(sequence: Sequence) -> None:
    """Its last token ended it, as an id or by its length."""
    token_id = int(sequence.output_ids[-1])
    if is_stop(sequence.request, token_id, len(sequence.output_ids)):
        stop_by_id(sequence, token_id)
    else:
        sequence.finish_reason = "length"


def judge(
    sequence: Sequence, tokens: list[int], num_outputs: int, written: Ints | None = None
) -> int:
    """How many of `tokens` a visited sequence keeps; sets its finish reason if it ends there.

    `num_outputs` = how many it had before. Finds stop strings by feeding the text watch, and
    repetition where that is wanted and `written`, its tokens before, is given. One whose text or
    grammar cannot go on ends alone, without these tokens.
    """
    kept = for_row("its text was followed", _judge, sequence, tokens, num_outputs, written)
    if isinstance(kept, QuireError):
        sequence.finish_reason, sequence.error = "error", kept
        return 0
    return kept


def _judge(sequence: Sequence, tokens: list[int], num_outputs: int, written: Ints | None) -> int:
    request, watch, guide = sequence.request, sequence.watch, sequence.guide
    for kept, token in enumerate(tokens, start=1):
        total = num_outputs + kept
        if is_stop(request, token, total) and (guide is None or guide.is_complete):
            stop_by_id(sequence, token)
            if watch is not None and request.params.include_stop_str_in_output:
                watch.feed([token])
            return kept
        if guide is not None and not guide.accept(token):
            sequence.finish_reason, sequence.error = "error", guide.error
            return kept
        matched = watch.feed([token]) if watch is not None else None
        if matched is not None and total >= request.params.min_tokens:
            sequence.finish_reason, sequence.stop_reason = "stop", matched
            return kept
        if _is_over(sequence, total):
            return kept
        detection = request.params.repetition_detection
        if written is None or detection is None or total < request.params.min_tokens:
            continue
        if is_repeating(np.append(written, np.asarray(tokens[:kept], np.int32)), detection):
            sequence.finish_reason, sequence.stop_reason = "repetition", REPEATED
            return kept
    return len(tokens)


def judge_together(
    sequences: Many[Sequence], tokens: list[int], num_outputs: list[int], accept_all: AcceptAll
) -> None:
    """The same for sequences that drew a token each, which all of them keep: each follows a
    grammar, and none looks for stop strings. Their guides go on together."""
    going: list[tuple[Sequence, Guide, int, int]] = []
    for sequence, token, before in zip(sequences, tokens, num_outputs, strict=True):
        request, guide = sequence.request, sequence.guide
        if guide is None:
            raise ValueError("a sequence without a grammar is judged by itself")
        if is_stop(request, token, before + 1) and guide.is_complete:
            stop_by_id(sequence, token)
        else:
            going.append((sequence, guide, token, before + 1))
    taken = accept_all([guide for _, guide, _, _ in going], [token for _, _, token, _ in going])
    for (sequence, guide, _, total), accepted in zip(going, taken, strict=True):
        if accepted:
            _is_over(sequence, total)
        else:
            sequence.finish_reason, sequence.error = "error", guide.error


def _is_over(sequence: Sequence, total: int) -> bool:
    """Whether the end of its grammar, or the length, ends a sequence that wrote so many tokens;
    its finish reason then says so."""
    guide = sequence.guide
    if guide is not None and guide.is_stopped:
        sequence.finish_reason = "stop"
    elif total >= sequence.request.max_tokens:
        sequence.finish_reason = "length"
        if guide is not None and not guide.is_complete:
            sequence.stop_reason = UNFINISHED
    return sequence.finish_reason is not None


def accept_each(guides: Many[Guide], tokens: Many[int]) -> list[bool]:
    """One after the other."""
    return [guide.accept(token) for guide, token in zip(guides, tokens, strict=True)]
