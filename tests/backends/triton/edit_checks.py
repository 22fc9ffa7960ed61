"""What drawing from edited logits must do, compared with the sampler that defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.upload import Upload
from quire.params.row_sampling import RowSampling
from quire.params.structured import StructuredOutputsParams
from quire.request import Ints
from quire.sampling.keys import noise_key
from quire.sampling.sampler import Sampler
from quire.sampling_params import SamplingParams
from quire.step import Assigned, Masks, RowStart
from quire.steps.row_schema import EMPTIED, Column
from tests.backends.triton.checks import Place


def some_ids(rng: np.random.Generator, vocab: int, count: int) -> list[int]:
    return rng.choice(vocab, min(count, vocab), replace=False).tolist()


def random_start(rng: np.random.Generator, row: int, vocab: int, likely: Sequence[int]) -> RowStart:
    """Every feature with a chance of its own; one row in six has none. Bad words of several tokens
    are of those that the row is likely to draw, so that it has written what stands before."""
    plain = row % 6 == 5

    def maybe(value: Any, other: Any) -> Any:
        return value if rng.random() < 0.5 and not plain else other

    params = SamplingParams(
        max_tokens=50,
        temperature=float(rng.choice([0.0, 0.7, 1.0])),
        top_k=int(rng.choice([0, 9])),
        top_p=float(rng.choice([1.0, 0.8])),
        repetition_penalty=maybe(1.3, 1.0),
        frequency_penalty=maybe(0.77, 0.0),
        presence_penalty=maybe(0.9, 0.0),
        min_tokens=maybe(8, 0),
        logit_bias=maybe({t: float(rng.normal()) * 4 for t in some_ids(rng, vocab, 7)}, None),
        allowed_token_ids=maybe(some_ids(rng, vocab, min(vocab // 2, 2000)), None),
        structured_outputs=maybe(StructuredOutputsParams(regex="a"), None),
    )
    single = [[t] for t in some_ids(rng, vocab, 5) if t not in likely]
    phrases = [rng.choice(likely, rng.integers(2, 5)).tolist() for _ in range(12)]
    params._bad_words_token_ids = [*maybe(single, []), *maybe(phrases, [])]
    outputs = rng.integers(0, vocab, int(rng.integers(0, 6))).astype(np.int32)
    return RowStart(
        row,
        RowSampling.of(params),
        noise_key(row),
        0,
        rng.integers(0, vocab, 30).astype(np.int32),
        outputs,
        np.array(some_ids(rng, vocab, 10), np.int32),
        50,
    )


def random_masks(rng: np.random.Generator, rows: Ints, vocab: int) -> Masks:
    """Three tokens in four are allowed; the first row may draw nothing at all."""
    bits = np.zeros((len(rows), -(-vocab // 32)), np.uint32)
    for shift in range(32):
        bits |= (rng.random(bits.shape) < 0.75).astype(np.uint32) << np.uint32(shift)
    bits[:1] = 0
    return Masks(rows, bits)


def check_edits(place: Place, vocab: int, num_rows: int, steps: int, seed: int) -> None:
    from quire.executor.cuda.triton_ops import TritonOps

    rng = np.random.default_rng(seed)
    columns = DeviceColumns(num_rows, 8, vocab_size=vocab, device=place.device)
    ops = TritonOps(columns, frozenset(), 4)
    cpu = torch.device("cpu")
    sampler = Sampler(vocab_size=vocab, max_rows=num_rows, device=cpu, logprobs_mode="raw_logprobs")
    # Row numbers are not the lines'; half of the rows begin anew in the middle.
    rows = rng.permutation(num_rows).astype(np.int32)
    lengths, guided = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.bool_)
    favoured = place.random(num_rows, vocab, seed=seed - 1) * 2
    likely = dict(zip(rows.tolist(), favoured.topk(2).indices.tolist(), strict=True))
    for step in range(steps):
        new = rows if step == 0 else rows[::2] if step == steps // 2 else rows[:0]
        starts = [random_start(rng, row, vocab, likely[row]) for row in new.tolist()]
        upload = Upload(place.device)
        columns.pack(upload, new, starts, Assigned())
        upload.send()
        columns.change(upload)
        for start in starts:
            sampler.start(start)
            guided[start.row] = start.sampling.guided
            lengths[start.row] = len(start.prompt_ids) + len(start.output_ids)
        assert not columns.special[rows].any()
        # Nearly the same at each step: a row that forgot what it drew would draw it again.
        logits = favoured + place.random(num_rows, vocab, seed=seed + step) / 8
        masks = random_masks(rng, rows[guided[rows]], vocab)
        columns.edits.set_masks(
            torch.from_numpy(masks.rows.astype(np.int64)).to(place.device),
            torch.from_numpy(masks.bits.view(np.int32)).to(place.device),
        )
        edited = np.flatnonzero(columns.edits.edited[rows]).astype(np.int32)
        assert 0 < len(edited) < num_rows
        listed = torch.from_numpy(np.append(edited, [-1, -1]).astype(np.int32))
        at = lengths[rows]
        tokens, failed = ops.draw(
            logits,
            torch.from_numpy(rows).to(place.device),
            torch.from_numpy(at).to(place.device),
            truncated=True,
            edited=listed.to(place.device),
        )
        wanted = sampler.sample(logits.float().cpu(), rows, at, masks)
        assert torch.nonzero(failed.cpu())[:, 0].tolist() == list(wanted.failed)
        emptied = torch.nonzero(failed.cpu() == EMPTIED)[:, 0].tolist()
        assert emptied == list(wanted.left_none) and emptied
        assert tokens.cpu().tolist() == wanted.tokens.tolist()
        lengths += 1


def check_ahead(place: Place, vocab: int, num_rows: int, num_masks: int, seed: int) -> None:
    """Rows within limits draw without their masks: where one does not rest, every mask that allows
    its token would have given it the same."""
    from quire.executor.cuda.triton_ops import TritonOps

    rng = np.random.default_rng(seed)
    columns = DeviceColumns(num_rows, 8, vocab_size=vocab, device=place.device)
    ops = TritonOps(columns, frozenset(), 4)
    cpu = torch.device("cpu")
    sampler = Sampler(vocab_size=vocab, max_rows=num_rows, device=cpu, logprobs_mode="raw_logprobs")
    rows = rng.permutation(num_rows).astype(np.int32)
    starts = [_limited_start(rng, row) for row in rows.tolist()]
    upload = Upload(place.device)
    columns.pack(upload, rows, starts, Assigned())
    upload.send()
    columns.change(upload)
    for start in starts:
        sampler.start(start)
    logits = place.random(num_rows, vocab, seed=seed) * 3
    at = np.full(num_rows, 5, np.int32)
    places = np.arange(num_rows, dtype=np.int32)
    given = (torch.from_numpy(one).to(place.device) for one in (rows, at, places))
    drawing, next_at, edited = given
    drawn, failed = ops.draw(logits, drawing, next_at, truncated=True, edited=edited, ahead=True)
    tokens, rests = drawn.cpu().numpy(), columns.ints[Column.FROZEN].cpu().numpy()[rows] != 0
    guided = np.array([start.sampling.guided for start in starts])
    assert not failed.any() and not rests[~guided].any()
    assert 0.1 < rests[guided].mean() < 0.9, "some are sure of what they drew, and some are not"
    plain = sampler.sample(logits.float().cpu(), rows, at, None).tokens.numpy()
    assert tokens[~guided].tolist() == plain[~guided].tolist()
    sure = np.flatnonzero(guided & ~rests)
    for _ in range(num_masks):
        share = rng.choice([0.02, 0.3, 0.9], (len(sure), 1))
        allowed = rng.random((len(sure), vocab)) < share
        allowed[np.arange(len(sure)), tokens[sure]] = True
        packed = np.packbits(allowed, axis=1, bitorder="little")
        padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))
        masks = Masks(rows[sure], np.ascontiguousarray(padded).view(np.uint32))
        wanted = sampler.sample(logits[sure].float().cpu(), rows[sure], at[sure], masks)
        assert tokens[sure].tolist() == wanted.tokens.tolist()


def _limited_start(rng: np.random.Generator, row: int) -> RowStart:
    """One row in five has a bias instead of a grammar."""
    grammar, chance = StructuredOutputsParams(regex="a"), rng.random(3) < 0.5
    params = SamplingParams(
        max_tokens=50,
        temperature=float(rng.choice([0.7, 1.0, 1.5])),
        top_k=int(rng.choice([3, 20])) if chance[0] else 0,
        top_p=float(rng.choice([0.6, 0.95])) if chance[1] else 1.0,
        min_p=float(rng.choice([0.05, 0.3])) if chance[2] else 0.0,
        logit_bias={1: 0.5} if row % 5 == 0 else None,
        structured_outputs=grammar if row % 5 else None,
    )
    few, none = np.arange(3, dtype=np.int32), np.empty(0, np.int32)
    return RowStart(row, RowSampling.of(params), noise_key(row), 0, few, none, none, 50)
