"""Rows with edits run as plain ones do: by the device's own sampling, many steps a plan."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from quire.errors import NoTokenLeft
from quire.executor.cuda.device_edits import OWN_WORDS, DeviceEdits, has_edits
from quire.params.row_sampling import MOST_SPELLED, RowSampling
from quire.request import Request
from quire.steps.arena import Arena
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_drawn_scores import Watched, few_stop
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, expected
from tests.executor.harness import row_start, told
from tests.specs import small_config

SUPPRESSING = 77  # the seed of rows whose model rules out some tokens
EDITED: list[dict[str, object]] = [
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 1.0, "frequency_penalty": 0.4, "presence_penalty": 0.5, "n": 3},
    {"temperature": 1.0, "logit_bias": {3: 5.0, 9: -3.0}, "logprobs": 0},
    {"temperature": 0.7, "top_k": 20, "allowed_token_ids": list(range(5, 90))},
    {"temperature": 0.0, "min_tokens": 9, "bad_words": ["word"]},
    {"temperature": 0.0, "bad_words": ["several tokens"]},
    {"temperature": 1.0, "seed": SUPPRESSING, "min_tokens": 1},
]
# What only the sampler can do, beside them.
BY_SAMPLER: list[dict[str, object]] = [
    {"temperature": 0.0, "bad_words": ["too many tokens"]},
    {"temperature": 0.0, "seed": SUPPRESSING, "min_tokens": 5},
]


def asked(kinds: list[dict[str, object]]) -> list[Request]:
    made = few_stop(kinds)
    for one in made:
        if one.params.bad_words == ["word"]:
            one.params._bad_words_token_ids = [[token] for token in range(100, 140)]
        elif one.params.bad_words == ["too many tokens"]:
            one.params._bad_words_token_ids = [list(range(MOST_SPELLED + 1))]
        elif one.params.seed == SUPPRESSING:
            one.params._suppressed_token_ids = tuple(range(0, 200, 2)), tuple(range(1, 197, 2))
        elif one.params.bad_words:
            pairs = [[a, b] for a in range(0, 200, 3) for b in range(0, 200, 2)]
            one.params._bad_words_token_ids = [*pairs, *([a, 1, 3] for a in range(200))]
    return made


def check(kinds: list[dict[str, object]], max_repeat: int, num_blocks: int) -> Watched:
    config = small_config(depth=2, max_repeat=max_repeat, num_blocks=num_blocks)
    executor = Watched(config, SPEC, WEIGHTS)
    got = answers(executor, config, asked(kinds))
    for one, wanted in zip(got, expected(asked(kinds), config), strict=True):
        assert one.output_ids.tolist() == wanted.output_ids.tolist()
        assert (one.finish_reason, one.stop_reason) == (wanted.finish_reason, wanted.stop_reason)
        assert told(one.logprobs)[0] == told(wanted.logprobs)[0]
        np.testing.assert_allclose(told(one.logprobs)[1], told(wanted.logprobs)[1], atol=1e-4)
    return executor


@pytest.mark.parametrize("kinds", [EDITED, PLAIN + EDITED], ids=["edited", "mixed"])
@pytest.mark.parametrize(("max_repeat", "num_blocks"), [(1, 128), (8, 40)])
def test_edited_rows_draw_the_tokens_of_one_step_at_a_time(
    kinds: list[dict[str, object]], max_repeat: int, num_blocks: int
) -> None:
    executor = check(kinds, max_repeat, num_blocks)
    assert not executor.ways
    assert any(repeat > 1 for _, repeat in executor.seen) is (max_repeat > 1)
    edits = executor.runner.columns.edits
    executor.reset()
    assert edits._room._free == [(OWN_WORDS * 16, edits._num_words)]


def test_rows_with_edits_draw_by_kernels_beside_the_samplers() -> None:
    executor = check(EDITED + BY_SAMPLER, 8, 128)
    assert executor.ways == {"late"}


def test_rows_that_find_no_room_are_left_to_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = DeviceEdits.begin
    monkeypatch.setattr(DeviceEdits, "begin", lambda self, s: s.row % 2 == 0 and begin(self, s))
    executor = check(EDITED, 8, 128)
    assert executor.ways == {"now"} and any(repeat > 1 for how, repeat in executor.seen if how)


def test_masks_are_at_one_address_before_the_first_comes() -> None:
    """What is captured for a row with a bias alone may be run for one that has a mask."""
    edits = DeviceEdits(4, 64, torch.device("cpu"), num_states=3)
    before = edits.masks.data_ptr()
    edits.set_masks(torch.tensor([2]), torch.tensor([[5, 6]], dtype=torch.int32))
    assert edits.masks.data_ptr() == before and edits.masks.shape == (8, 2)
    assert edits.masks[2].tolist() == [5, 6] and edits.masks[1].tolist() == [-1, -1]


def test_whatever_a_row_asks_for_is_known_to_the_device() -> None:
    """A field of RowSampling that nobody reads here would be passed over in silence."""
    ids = np.array([3], np.int32)
    drawn_by = {"temperature", "top_k", "top_p", "min_p", "num_logprobs", "logprob_ids"}
    edits = {
        **dict.fromkeys(("repetition_penalty", "frequency_penalty", "presence_penalty"), 0.5),
        **dict.fromkeys(("allowed_ids", "bias_ids", "never_ids", "not_first_ids"), ids),
        "bad_words": (ids,),
        "min_tokens": 1,
        "guided": True,
    }
    together = {"biases"}  # with bias_ids
    assert {one.name for one in fields(RowSampling)} == drawn_by | edits.keys() | together
    for name, value in edits.items():
        start = row_start(0, [1], stop_ids=ids, sampling=replace(RowSampling(), **{name: value}))
        assert has_edits(start), name


def test_the_arena_hands_out_and_joins_spans() -> None:
    arena = Arena(10)
    assert [arena.take(size) for size in (4, 3, 3, 1)] == [0, 4, 7, None]
    arena.give([(0, 4), (7, 3)])
    assert [arena.take(5), arena.take(3)] == [None, 0]
    arena.give([(4, 3)])
    assert arena.take(7) == 3


def contradicting() -> list[Request]:
    """One row may draw only what it may not, another only once it has drawn the other token."""
    kinds = [
        {"temperature": t, "allowed_token_ids": [7, 9], "bad_words": ["one"]} for t in (0.0, 1.0)
    ]
    made = few_stop([*kinds, *PLAIN[:2]])
    made[0].params._bad_words_token_ids = [[7], [9]]
    made[1].params._bad_words_token_ids = [[7], [9, 9]]
    return made


@pytest.mark.parametrize("max_repeat", [1, 8])
def test_rows_whose_edits_leave_no_token_say_so(max_repeat: int) -> None:
    config = small_config(depth=2, max_repeat=max_repeat, num_blocks=128)
    executor = Watched(config, SPEC, WEIGHTS)
    got, wanted = answers(executor, config, contradicting()), expected(contradicting(), config)
    for one, other in zip(got, wanted, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        assert (type(one.error), str(one.error)) == (type(other.error), str(other.error))
    assert [type(one.error) for one in got[:2]] == [NoTokenLeft] * 2
    assert got[1].output_ids.tolist() == [9] and not got[2].error
