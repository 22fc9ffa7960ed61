"""Whisper against Transformers: greedy tokens and logprobs for sounds of several lengths, in any
batch, with preemption, samples and little room for sounds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from quire.executor.ranks.board import Column
from quire.executor.ranks.executor import RanksExecutor
from quire.families.registry import BY_ARCHITECTURE
from quire.weights.hf_config import WITHOUT_EFFECT
from tests.media.sounds import tone
from tests.media.tiny import TinyModel
from tests.media.whisper import (
    EN,
    NO_TIMES,
    NOT_FIRST,
    START,
    SUPPRESSED,
    TRANSCRIBE,
    searched,
    written,
)
from tests.media.whisper import make_whisper as make

COUNT = 12
LENGTHS = (160, 800, 3_000, 5_555, 8_000, 12_345, 15_999, 16_000)
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, logprobs=0)
ASKED = [START, EN, TRANSCRIBE, NO_TIMES]
TEXT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
Written = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    return make(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm() as made:
        yield made


def prompt(length: int, ids: list[int] | None = None) -> dict[str, Any]:
    sound = {"audio": (tone(length), 16_000)}
    return {"prompt_token_ids": ids or ASKED, "multi_modal_data": sound}


@pytest.fixture(scope="module")
def expected(model: TinyModel) -> list[Written]:
    return [written(model.module, tone(length), ASKED, COUNT) for length in LENGTHS]


def check(outputs: Any, expected: list[Written]) -> None:
    for output, (tokens, logprobs) in zip(outputs, expected, strict=True):
        for answer in output.outputs:
            assert list(answer.token_ids) == tokens
            pairs = zip(tokens, answer.logprobs, strict=True)
            assert [line[token].logprob for token, line in pairs] == pytest.approx(
                logprobs, abs=1e-3
            )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 3, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"batch_invariant": True},
    ],
    ids=["plain", "chunks", "invariant"],
)
def test_tokens_are_those_of_transformers(
    model: TinyModel, expected: list[Written], options: dict[str, Any]
) -> None:
    assert len({tuple(tokens) for tokens, _ in expected}) > 4  # sounds count
    prompts = [prompt(length) for length in LENGTHS]
    with model.llm(**options) as llm:
        check(llm.generate(prompts, GREEDY, use_tqdm=False), expected)
        check(llm.generate(prompts[::-1], GREEDY, use_tqdm=False), expected[::-1])
        assert llm._session.engine.scheduler.media.num_encoded == len(LENGTHS)


def test_heads_of_several_ranks_hear_what_one_hears(
    model: TinyModel, expected: list[Written]
) -> None:
    with model.llm(tensor_parallel_size=2) as llm:
        executor = llm._session.model.executor
        assert isinstance(executor, RanksExecutor)
        check(llm.generate([prompt(n) for n in LENGTHS], GREEDY, use_tqdm=False), expected)
        # However long a sound takes, ranks are seen to move.
        first, second = executor._alive.board.lines[:, Column.ENCODED].tolist()
        assert first == second > 2 * len(LENGTHS)


def test_rows_come_back_to_their_sounds(model: TinyModel) -> None:
    """Answers that are longer than any before, in a pool that does not hold them all."""
    short = SamplingParams(max_tokens=30, allowed_token_ids=[9], stop_token_ids=[9])
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=0)
    pairs = [(length, more) for length in LENGTHS[2:4] for more in (1, 2, 3)]
    asked = [(length, [START, EN, *range(10, 10 + more)]) for length, more in pairs]
    expected = [written(model.module, tone(length), ids, 30) for length, ids in asked]
    with model.llm(num_gpu_blocks_override=32, block_size=4) as llm:
        llm.generate([prompt(160)] * 20, short, use_tqdm=False)
        check(llm.generate([prompt(*each) for each in asked], params, use_tqdm=False), expected)
        assert llm._session.engine.scheduler.num_preemptions > 0


def test_room_for_one_sound_is_enough(model: TinyModel, expected: list[Written]) -> None:
    """Whoever finds none waits; a sound that comes back is encoded again."""
    prompts = [prompt(length) for length in LENGTHS]
    with model.llm(num_gpu_blocks_override=4) as llm:
        scheduler = llm._session.engine.scheduler
        assert scheduler.limits.shelf_rows == 50
        check(llm.generate(prompts + prompts[:2], GREEDY, use_tqdm=False), expected + expected[:2])


def test_samples_share_a_sound(llm: LLM, expected: list[Written]) -> None:
    params = SamplingParams(n=3, temperature=1.0, max_tokens=6, seed=1)
    before = llm._session.engine.scheduler.media.num_encoded
    [output] = llm.generate(prompt(7_000), params, use_tqdm=False)
    assert len({tuple(answer.token_ids) for answer in output.outputs}) > 1
    [again] = llm.generate(prompt(7_000), params, use_tqdm=False)
    assert [a.token_ids for a in again.outputs] == [a.token_ids for a in output.outputs]
    assert llm._session.engine.scheduler.media.num_encoded == before + 1


def test_long_answers_do_not_share_the_kv_of_other_sounds(llm: LLM, model: TinyModel) -> None:
    """Prompts of whole blocks that are equal but for their sound."""
    ids = [START, EN, TRANSCRIBE, NO_TIMES] * 10
    outputs = llm.generate([prompt(n, ids) for n in LENGTHS[:3]], GREEDY, use_tqdm=False)
    check(outputs, [written(model.module, tone(n), ids, COUNT) for n in LENGTHS[:3]])
    [again] = llm.generate(prompt(LENGTHS[1], ids), GREEDY, use_tqdm=False)
    assert again.num_cached_tokens and again.outputs[0].token_ids == outputs[1].outputs[0].token_ids


@pytest.mark.parametrize("form", ["text", "parts", "parts of ids", "decoder as dict"])
def test_prompts_as_scripts_write_them(llm: LLM, expected: list[Written], form: str) -> None:
    sound = {"multi_modal_data": {"audio": (tone(LENGTHS[2]), 16_000)}}
    encoder = {"prompt": "", **sound}
    given: Any = {
        "text": {"prompt": TEXT, **sound},
        "parts": {"encoder_prompt": encoder, "decoder_prompt": TEXT},
        "parts of ids": {"encoder_prompt": encoder, "decoder_prompt": ASKED},
        "decoder as dict": {"encoder_prompt": encoder, "decoder_prompt": {"prompt": TEXT}},
    }[form]
    [output] = llm.generate(given, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == ASKED
    check([output], expected[2:3])


def test_a_decoder_prompt_of_none_is_where_answers_begin(llm: LLM) -> None:
    sound = {"multi_modal_data": {"audio": (tone(5_000), 16_000)}}
    given: Any = {"encoder_prompt": {"prompt": "", **sound}, "decoder_prompt": None}
    said, same = llm.generate([given, prompt(5_000, [START])], GREEDY, use_tqdm=False)
    assert said.prompt_token_ids == same.prompt_token_ids == [START]
    assert said.outputs[0].token_ids == same.outputs[0].token_ids


def test_suppressed_tokens_never_come(llm: LLM) -> None:
    params = SamplingParams(
        n=4, temperature=2.0, max_tokens=50, seed=0, logit_bias=dict.fromkeys(SUPPRESSED, 100.0)
    )
    biased = dict.fromkeys(NOT_FIRST, 90.0)
    params.logit_bias = {**(params.logit_bias or {}), **biased}
    params.ignore_eos = True
    for output in llm.generate([prompt(n) for n in LENGTHS], params, use_tqdm=False):
        for answer in output.outputs:
            assert not set(answer.token_ids) & set(SUPPRESSED)
            assert answer.token_ids[0] not in NOT_FIRST
            assert set(answer.token_ids[1:]) & set(NOT_FIRST)


@pytest.mark.parametrize(("width", "rows"), [(2, 256), (5, 3)])
def test_beams_are_those_of_transformers(model: TinyModel, width: int, rows: int) -> None:
    """Over several sounds at once, in fewer rows than beams, too; what would be written otherwise
    is suppressed."""
    lengths = LENGTHS[::3]
    free = [searched(model.module, tone(n), ASKED, width, COUNT)[0] for n in lengths]
    said = {
        "begin_suppress_tokens": [beams[0][0] for beams in free],
        "suppress_tokens": sorted({beam[3] for beams in free for beam in beams}),
    }
    how: Any = {"max_num_seqs": rows, "max_num_batched_tokens": max(rows, 3)}
    with model.llm(override_generation_config=said, **how) as llm:
        search = BeamSearchParams(beam_width=width, max_tokens=COUNT)
        outputs = llm.beam_search([prompt(n) for n in lengths], search)
        assert llm._session.engine.scheduler.media.num_encoded == len(lengths)
    for length, output in zip(lengths, outputs, strict=True):
        beams, scores = searched(model.module, tone(length), ASKED, width, COUNT, **said)
        assert [one.output_token_ids for one in output.sequences] == beams
        mine = [one.cum_logprob / len(one.output_token_ids) for one in output.sequences]
        assert mine == pytest.approx(scores, abs=1e-4)


def test_bad_sounds_end_their_own_row(llm: LLM, expected: list[Written]) -> None:
    samples = tone(4_000)
    bad: list[Any] = [
        {"audio": (tone(16_001), 16_000)},
        {"audio": [samples, samples]},
        {"audio": (np.full(400, np.nan, np.float32), 16_000)},
        {"audio": (samples[:0], 16_000)},
        {"audio": b"no sound"},
        {"image": np.zeros((4, 4, 3), np.uint8)},
        {},
    ]
    prompts = [{"prompt": TEXT, "multi_modal_data": data} for data in bad]
    prompts += [
        TEXT,
        {"encoder_prompt": TEXT, "decoder_prompt": TEXT},
        {"encoder_prompt": {"prompt": "a", "multi_modal_data": {"audio": samples}}},
        {"encoder_prompt": {"multi_modal_data": {"audio": samples}}},
    ]
    every = [*prompts, prompt(LENGTHS[3])]
    outputs = llm.generate(every, GREEDY, use_tqdm=False, on_error="return")
    check(outputs[-1:], expected[3:4])
    for output in outputs[:-1]:
        assert isinstance(output.error, InvalidPrompt | NotSupported), output
    assert "1.0 s; the model hears 1 s" in str(outputs[0].error)
    assert "hears one at a time" in str(outputs[1].error)


def test_every_key_of_its_config_is_accounted_for(
    model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import WhisperConfig

    from tests.weights.test_config_keys import keys_read

    family = BY_ARCHITECTURE["WhisperForConditionalGeneration"]
    config = {**model.module.config.to_dict(), "architectures": [*family.architectures]}
    read = keys_read(config, monkeypatch)
    unread = {field.name for field in fields(WhisperConfig)} - read
    assert unread - {*WITHOUT_EFFECT, *family.without_effect} == set()
    assert not read & {*family.without_effect}


def test_what_is_not_built_is_refused_by_name(model: TinyModel, llm: LLM) -> None:
    for options in ({"language_model_only": True}, {"limit_mm_per_prompt": {"audio": 0}}):
        with pytest.raises(NotSupported, match="writes nothing without"):
            model.llm(**options)
    with pytest.raises(NotSupported, match="score_continuations of a model"):
        llm.score_continuations(["a"], [["b"]])
