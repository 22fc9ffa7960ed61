"""When a sequence ends, and why: end-of-sequence, stop ids, stop strings, length.

Per token, in this order: nothing stops before `min_tokens` outputs exist; then an eos or stop
id, then a stop string, then the end of its grammar, then the length, then repetition. Ids are
judged for all rows at once, as arrays. Rows that Python visits anyway (stop strings, grammars, many
stop ids, repetition) are judged one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.params.structured import RepetitionDetectionParams
from quire.request import Ints, Request
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Guide, Sequence

# Gives each guide its token, as `Guide.accept` does; returns for each whether the grammar allowed
# it, or the error that was raised.
AcceptAll = Callable[[Many[Guide], Many[int]], Many[bool | QuireError]]

# The stop reason of an answer that reached max_tokens in the middle of its grammar.
UNFINISHED = "unfinished_structured_output"
REPEATED = "repetition_detected"
FOLLOWED = "its text was followed"


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
    """Whether this token, output number `num_outputs` (from 1), ends the sequence by its id."""
    if num_outputs < request.params.min_tokens:
        return False
    return token_id in request.eos_ids or token_id in request.stop_ids


def stop_by_id(sequence: Sequence, token_id: int) -> None:
    """End with this token. `stop_reason` names an id that the caller asked for, not an eos id."""
    sequence.finish_reason = "stop"
    sequence.stop_reason = token_id if token_id in sequence.request.stop_ids else None


def stop_by_last(sequence: Sequence) -> None:
    """Set why the last token ended the sequence: as a stop id, or by length."""
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
    repetition where that is wanted and `written`, its tokens before, is given. A sequence whose
    text or grammar raises an error ends with it, without these tokens; no other one is affected.
    """
    kept = for_row(FOLLOWED, _judge, sequence, tokens, num_outputs, written)
    if isinstance(kept, QuireError):
        fail(sequence, kept)
        return 0
    return kept


def fail(sequence: Sequence, error: QuireError | None) -> None:
    """End a sequence with this error."""
    sequence.finish_reason, sequence.error = "error", error


def _judge(sequence: Sequence, tokens: list[int], num_outputs: int, written: Ints | None) -> int:
    request, watch, guide = sequence.request, sequence.watch, sequence.guide
    detection = request.params.repetition_detection
    # No repetition is longer than this, however long the answer is.
    span = 0 if detection is None else detection.max_pattern_size * detection.min_count
    if guide is None and detection is None:
        return _judge_text(sequence, tokens, num_outputs)
    recent = None if written is None else np.append(written[-span:], np.asarray(tokens, np.int32))
    for kept, token in enumerate(tokens, start=1):
        total = num_outputs + kept
        if is_stop(request, token, total) and (guide is None or guide.is_complete):
            _stop_in_text(sequence, token)
            return kept
        if guide is not None and not guide.accept(token):
            fail(sequence, guide.error)
            return kept
        matched = watch.follow([token]) if watch is not None else None
        if matched is not None:
            sequence.finish_reason, sequence.stop_reason = "stop", matched[1]
            return kept
        if _is_over(sequence, total):
            return kept
        if recent is None or detection is None or total < request.params.min_tokens:
            continue
        if is_repeating(recent[: len(recent) - len(tokens) + kept], detection):
            sequence.finish_reason, sequence.stop_reason = "repetition", REPEATED
            return kept
    return len(tokens)


def _judge_text(sequence: Sequence, tokens: list[int], num_outputs: int) -> int:
    """The same where only ids, the length and stop strings may end it: its text is read at once,
    which costs a fraction of reading it token by token in plans of many steps."""
    request, watch = sequence.request, sequence.watch
    tokens = tokens[: request.max_tokens - num_outputs]
    totals = enumerate(tokens, start=num_outputs + 1)
    before = next((at for at, t in totals if is_stop(request, t, at)), None)
    text = tokens if before is None else tokens[: before - num_outputs - 1]
    matched = watch.follow(text) if watch is not None and text else None
    if matched is not None:
        sequence.finish_reason, sequence.stop_reason = "stop", matched[1]
        return matched[0]
    if before is None:
        _is_over(sequence, num_outputs + len(tokens))
        return len(tokens)
    _stop_in_text(sequence, tokens[len(text)])
    return len(text) + 1


def _stop_in_text(sequence: Sequence, token_id: int) -> None:
    """End with this token. If its text stays in the output and completes a stop string, that
    string cuts the text and is the reason."""
    stop_by_id(sequence, token_id)
    watch = sequence.watch
    if watch is not None and sequence.request.params.include_stop_str_in_output:
        matched = watch.follow([token_id])
        if matched is not None:
            sequence.stop_reason = matched[1]


def judge_ahead(sequence: Sequence, tokens: list[int], num_outputs: int, *, spells: bool) -> int:
    """How many of `tokens` a sequence with a grammar keeps, when it drew the first with its mask
    and the others without; sets its finish reason if it ends there. `spells`: forced tokens are
    found once for the whole forced text, and not token by token as masks allow them."""
    kept = for_row(FOLLOWED, _judge_ahead, sequence, tokens, num_outputs, spells=spells)
    if isinstance(kept, QuireError):
        fail(sequence, kept)
        return 0
    return kept


def _judge_ahead(sequence: Sequence, tokens: list[int], num_outputs: int, *, spells: bool) -> int:
    request, guide = sequence.request, _guide(sequence)
    kept = _judge(sequence, tokens[:1], num_outputs, None)
    for token in tokens[1:]:
        if sequence.finish_reason is not None:
            break
        if spells and not sequence.must_draw:
            guide.must_draw = guide.forced()
            sequence.must_draw = bool(guide.must_draw)
        must = guide.must_draw[:1] if spells else guide.forced()[:1]
        if token in request.eos_ids or token in request.stop_ids:
            # Masks treat stop ids differently. Only an eos id after a complete text is kept.
            ends = not must and guide.is_complete and token in request.eos_ids
            if not ends or not is_stop(request, token, num_outputs + kept + 1):
                break
            stop_by_id(sequence, token)
        elif (must and must[0] != token) or not guide.try_accept(token):
            break
        else:
            sequence.must_draw = spells and bool(must)
            _is_over(sequence, num_outputs + kept + 1)
        kept += 1
    return kept


def judge_together(
    sequences: Many[Sequence], tokens: list[int], accept_all: AcceptAll
) -> list[int]:
    """The same for sequences that drew one token each, which is no stop id and leaves room for
    more: how many of it each keeps. Each follows a grammar, and none has stop strings. Their guides
    accept their tokens in one call."""
    guides = [_guide(sequence) for sequence in sequences]
    kept, taken = [1] * len(guides), accept_all(guides, tokens)
    for i, (guide, accepted) in enumerate(zip(guides, taken, strict=True)):
        over = for_row(FOLLOWED, _is_stopped, guide) if accepted is True else accepted
        if isinstance(over, QuireError):
            fail(sequences[i], over)
            kept[i] = 0
        elif accepted is False:
            fail(sequences[i], guide.error)
        elif over:
            sequences[i].finish_reason = "stop"
    return kept


def _guide(sequence: Sequence) -> Guide:
    if sequence.guide is None:
        raise ValueError("a sequence without a grammar is judged by itself")
    return sequence.guide


def _is_stopped(guide: Guide) -> bool:
    return guide.is_stopped


def _is_over(sequence: Sequence, total: int) -> bool:
    """Whether the end of its grammar, or the length, ends a sequence of `total` outputs; sets its
    finish reason then."""
    guide = sequence.guide
    if guide is not None and guide.is_stopped:
        sequence.finish_reason = "stop"
    elif total >= sequence.request.max_tokens:
        sequence.finish_reason = "length"
        if guide is not None and not guide.is_complete:
            sequence.stop_reason = UNFINISHED
    return sequence.finish_reason is not None


def accept_each(guides: Many[Guide], tokens: Many[int]) -> list[bool | QuireError]:
    """Accept the tokens one after the other."""
    pairs = zip(guides, tokens, strict=True)
    return [for_row(FOLLOWED, guide.accept, token) for guide, token in pairs]


def is_repeating(output_ids: Ints, wanted: RepetitionDetectionParams) -> bool:
    """Whether the last tokens repeat a pattern as often as `wanted` says: [7, 1, 2, 1, 2, 1, 2]
    ends with 3 times [1, 2]."""
    for size in range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1):
        span = size * wanted.min_count
        if span > len(output_ids):
            return False
        tail = output_ids[-span:]
        if np.array_equal(tail[:-size], tail[size:]):
            return True
    return False
