"""Outputs keep logprobs as arrays until somebody reads them, and then are what scripts expect."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from quire import LLM, RequestOutputKind, SamplingParams
from quire.inputs.detokenize import TokenTexts
from quire.logprobs import FlatLogprobs, Logprob, MadeDicts, Unread, joined, since
from quire.outputs import CompletionOutput
from quire.results.finished import in_arrays_of_its_own
from quire.results.logprob_dicts import ScoredTokens, UnreadLogprobs
from quire.step import Scores
from tests.tiny_llm import tiny_llm

PROMPTS = ["one two", "three", "four and five"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("llm")) as one:
        yield one


def scores(lines: int, width: int, first: int = 0) -> Scores:
    ids = np.arange(first, first + lines, dtype=np.int32)
    tops = ids[:, None] + np.arange(width, dtype=np.int32)
    values = -tops.astype(np.float32) / 8
    return Scores(ids, -ids.astype(np.float32) / 8, ids + 1, tops, values)


def unread(*parts: Scores, **how: Any) -> UnreadLogprobs:
    ids = np.concatenate([part.token_ids for part in parts])
    return UnreadLogprobs(ScoredTokens(parts, ids, 0, True, None), **how)


def kept(answer: CompletionOutput) -> object:
    return vars(answer)["logprobs"]


def generated(llm: LLM, **asked: Any) -> list[CompletionOutput]:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, **asked)
    return [one.outputs[0] for one in llm.generate(PROMPTS, params, use_tqdm=False)]


def test_nothing_is_made_before_somebody_reads(llm: LLM) -> None:
    (first, second, third) = generated(llm, logprobs=3)
    assert "logprobs=<9 positions>" in repr(first) and copy.copy(first) and first.since(4)
    assert isinstance(kept(first), Unread)
    logprobs = first.logprobs
    assert isinstance(logprobs, list) and len(logprobs) == 9 and logprobs is first.logprobs
    for token, position in zip(first.token_ids, logprobs, strict=True):
        assert type(position) is dict and next(iter(position)) == token
        assert isinstance(position[token], Logprob) and position[token].decoded_token is not None
    logprobs.append({})  # whoever has it may change it
    assert first.logprobs is not None and len(first.logprobs) == 10
    assert isinstance(kept(second), Unread) and isinstance(kept(third), Unread)


def test_copies_and_other_processes_get_lists_of_dicts(llm: LLM) -> None:
    (answer, _, _), (same, _, _) = generated(llm, logprobs=2), generated(llm, logprobs=2)
    sent = pickle.dumps(answer)
    assert isinstance(kept(answer), Unread) and len(sent) < 20_000
    back = pickle.loads(sent)
    assert isinstance(kept(back), list) and back == answer == same
    assert kept(copy.deepcopy(same)) == answer.logprobs
    assert replace(same, text="").logprobs == asdict_logprobs(same) == answer.logprobs


def asdict_logprobs(answer: CompletionOutput) -> list[dict[int, Logprob]]:
    found = asdict(answer)["logprobs"]
    return [{t: Logprob(**entry) for t, entry in position.items()} for position in found]


def test_flat_ones_and_those_of_prompts_are_read_as_asked(llm: LLM) -> None:
    listed, flat = generated(llm, logprobs=2)[0], generated(llm, logprobs=2, flat_logprobs=True)[0]
    assert isinstance(kept(flat), Unread) and isinstance(flat.logprobs, FlatLogprobs)
    assert list(flat.logprobs) == listed.logprobs
    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    (output,) = llm.generate(["one two three"], params, use_tqdm=False)
    assert isinstance(vars(output)["prompt_logprobs"], Unread)
    found = output.prompt_logprobs
    assert isinstance(found, list) and found is output.prompt_logprobs and found[0] is None
    ids = output.prompt_token_ids or []
    assert all(t in (p or {}) for t, p in zip(ids[1:], found[1:], strict=True))


@pytest.mark.parametrize("kind", list(RequestOutputKind)[:2])
def test_a_stream_has_the_logprobs_of_the_whole(llm: LLM, kind: RequestOutputKind) -> None:
    whole = [(one.logprobs, one.cumulative_logprob) for one in generated(llm, logprobs=2)]
    params = SamplingParams(
        temperature=0, max_tokens=9, ignore_eos=True, logprobs=2, output_kind=kind
    )
    found: dict[int, Any] = {}
    for index, output in llm.stream(PROMPTS, params, tokens=True):
        (answer,) = output.outputs
        before = found.get(index, [])
        read = answer.logprobs or []
        if kind is RequestOutputKind.CUMULATIVE and not output.finished:
            # The dicts of a growing answer are made once.
            assert all(a is b for a, b in zip(before, read, strict=False))
        found[index] = before + read if kind is RequestOutputKind.DELTA else read
        if output.finished:
            assert answer.cumulative_logprob == pytest.approx(whole[index][1])
    assert [found[index] for index in sorted(found)] == [logprobs for logprobs, _ in whole]


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_the_scores_of_a_prompt_come_with_the_first_token(
    llm: LLM, kind: RequestOutputKind
) -> None:
    params = SamplingParams(n=2, max_tokens=4, ignore_eos=True, prompt_logprobs=1, output_kind=kind)
    whole = [one.prompt_logprobs for one in llm.generate(PROMPTS, params, use_tqdm=False)]
    told: dict[int, list[bool]] = {}
    for index, output in llm.stream(PROMPTS, params, tokens=True):
        told.setdefault(index, []).append(output.prompt_logprobs is not None)
        if output.prompt_logprobs is not None:
            assert list(output.prompt_logprobs) == whole[index]
    for each in told.values():
        assert each[0] and each[-1] and len(each) > 2
        assert any(each[1:-1]) == (kind is RequestOutputKind.CUMULATIVE)


def test_parts_join_and_begin_later_unread_or_read() -> None:
    both = unread(scores(3, 2), scores(4, 2, 3))
    expected = both.read()
    for first in range(8):
        assert len(since(both, first)) == 7 - first
        assert since(both, first).read() == expected[first:] == since(expected, first)
    early = unread(scores(3, 2))
    late = since(both, 3)
    for a in (early, early.read()):
        for b in (late, late.read()):
            together = joined(a, b)
            made = together.read() if isinstance(together, Unread) else together
            assert made == expected
    assert joined(None, late) is late and since(None, 3) is None
    blank = unread(scores(3, 2), begins_blank=True)
    assert blank.read() == [None, *early.read()] and len(blank) == 4
    assert blank.since(2).read() == early.read()[1:]


def test_dicts_of_a_growing_answer_are_made_once() -> None:
    made, first, more = MadeDicts(), scores(3, 2), scores(2, 2, 3)
    early = unread(first, made=made).read()
    later = unread(first, more, made=made).read()
    assert len(later) == 5 and all(a is b for a, b in zip(early, later, strict=False))
    assert later == unread(first, more).read() and unread(first, made=made).read() == early
    early.clear()
    assert unread(first, made=made).read() == later[:3]


@pytest.mark.parametrize("ranked", [True, False])
def test_dicts_are_those_that_a_plain_loop_makes(ranked: bool) -> None:
    random = np.random.default_rng(3)
    ids, tops = random.integers(0, 9, 40), np.array([random.permutation(9)[:4] for _ in range(40)])
    made = Scores(
        ids.astype(np.int32),
        random.random(40, np.float32),
        random.integers(1, 9, 40).astype(np.int32),
        tops.astype(np.int32),
        random.random((40, 4), np.float32),
    )
    expected = []
    for own, logprob, rank, others, theirs in zip(
        *(a.tolist() for a in made.arrays()), strict=True
    ):
        found = {own: Logprob(logprob, rank)}
        for place, (token, its) in enumerate(zip(others, theirs, strict=True), start=1):
            found.setdefault(token, Logprob(its, place if ranked else None))
        expected.append(found)
    read = ScoredTokens(
        [made.part(0, 7), made.part(7, 40)], made.token_ids, 0, ranked, None
    ).dicts()
    assert read == expected and [list(d) for d in read] == [list(d) for d in expected]
    kinds = {(type(t), type(e.logprob), type(e.rank)) for d in read for t, e in d.items()}
    assert kinds <= {(int, float, int), (int, float, type(None))}


def test_texts_of_split_characters_stand_where_they_end(llm: LLM) -> None:
    tokenizer = llm._session.model.tokenizer
    assert tokenizer is not None
    texts, ids = (
        TokenTexts(tokenizer),
        tokenizer.encode("a \u221a\u221b \U0001f600", add_special_tokens=False),
    )
    tops = np.stack([ids, np.roll(ids, 1)], axis=1)
    zeros = np.zeros(len(ids), np.float32)
    made = Scores(ids, zeros, np.ones(len(ids), np.int32), tops, tops.astype(np.float32))
    found = ScoredTokens([made], ids, 0, True, texts).dicts()
    for at, position in enumerate(found):
        before = ids[max(0, at - 4) : at].tolist()
        assert {t: e.decoded_token for t, e in position.items()} == {
            t: texts.text(t, before) for t in tops[at].tolist()
        }


def test_a_logprob_is_what_dataclasses_take() -> None:
    one = Logprob(-0.5, 2, "a")
    assert asdict(one) == {"logprob": -0.5, "rank": 2, "decoded_token": "a"}
    assert replace(one, rank=3) == Logprob(-0.5, 3, "a") != one
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert repr(Logprob(-1.0)) == "Logprob(logprob=-1.0, rank=None, decoded_token=None)"


def test_tokens_that_came_one_by_one_have_the_dicts_of_those_that_came_at_once() -> None:
    whole, wider = scores(6, 3), scores(2, 4, 6)
    parts = [whole.part(i, i + 1) for i in range(6)]
    assert unread(*parts, wider).read() == unread(whole, wider).read()


def test_reading_many_sets_off_no_search_through_all_objects() -> None:
    """Each of those took longer than making the dicts."""
    many = [scores(128, 5) for _ in range(400)]
    full: list[int] = []
    gc.collect()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            full.append(info["generation"])

    gc.callbacks.append(note)
    try:
        read = [unread(one).read() for one in many]
    finally:
        gc.callbacks.remove(note)
    assert 2 not in full
    assert sum(map(len, read)) == 51_200


def test_kept_scores_hold_nothing_of_other_rows() -> None:
    block = scores(100, 5)
    parts = [block.part(3, 5), block.part(40, 41)]
    (alone,) = in_arrays_of_its_own(parts)
    assert alone.token_ids.tolist() == [3, 4, 40]
    mixed = in_arrays_of_its_own([*parts, block.part(7, 8, 2)])
    for one in (alone, *mixed, *in_arrays_of_its_own(parts[:1])):
        assert all(array.base is None for array in one.arrays())
    assert in_arrays_of_its_own([]) == ()
