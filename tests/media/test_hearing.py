"""Every family that hears against Transformers: greedy tokens with no, one and several sounds, for
chunks that cut spans, without the prefix cache, and in small pools; and what callers may pass."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from quire.families.media.rules import Samples
from tests.media.hearing import EARS, HEARING, RATE, Hearing, tone, wav
from tests.media.test_families import COUNT, Written, check
from tests.media.tiny import TinyModel, picture, save_tiny

SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'audio' %}"
    "Audio: <|audio_bos|><|AUDIO|><|audio_eos|>{% elif part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endfor %}"
)


def saved(name: str, path: Path) -> TinyModel:
    family = HEARING[name]
    return save_tiny(path, family.make(), family.added, EARS)


@pytest.fixture(scope="module", params=HEARING)
def family(request: Any) -> Any:
    return request.param


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: Any) -> TinyModel:
    return saved(family, tmp_path_factory.mktemp("model"))


def asked(family: Hearing) -> list[tuple[str, list[Samples]]]:
    """Eight prompts and their sounds."""
    here = family.placeholder
    a, b, c, d = [tone(seconds, seed) for seed, seconds in enumerate(family.seconds)]
    return [
        (f"Listen {here} what is it?", [a]),
        (f"This {here}\nand that{here} differ.", [b, c]),
        (f"{here}{here} well", [d, a]),
        ("Nothing to hear here.", []),
        (f"Listen {here} what is it?", [b]),
        (f"{here} then {here} then {here}", [c, d, c]),
        (f"Only {here}", [d]),
        ("Nothing here either.", []),
    ]


def prompts_of(family: Hearing) -> list[Any]:
    return [
        {"prompt": text, "multi_modal_data": {"audio": [(one, RATE) for one in sounds]}}
        for text, sounds in asked(family)
    ]


@pytest.fixture(scope="module")
def expected(family: str, model: TinyModel) -> list[Written]:
    """What Transformers writes after the ids that quire made."""
    how = HEARING[family]
    with model.llm() as llm:
        outputs = llm.generate(prompts_of(how), SamplingParams(max_tokens=1), use_tqdm=False)
    return [
        model.written(output.prompt_token_ids or [], COUNT, **(how.inputs(some) if some else {}))
        for output, (_, some) in zip(outputs, asked(how), strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 24, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 12, "max_model_len": 190},
    ],
    ids=["plain", "chunks", "preempted"],
)
def test_greedy_tokens_are_those_of_transformers(
    family: str, model: TinyModel, expected: list[Written], options: dict[str, Any]
) -> None:
    prompts = prompts_of(HEARING[family])
    with model.llm(**options) as llm:
        check(llm, prompts, expected)
        check(llm, prompts[::-1], expected[::-1])


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: Any) -> TinyModel:
    path = tmp_path_factory.mktemp("hearing")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return saved("qwen2_audio", path)


@pytest.fixture(scope="module")
def llm(hearing: TinyModel) -> Any:
    with hearing.llm(allowed_local_media_path=str(hearing.path)) as made:
        yield made


def ask(sound: Any, count: int = 1) -> dict[str, Any]:
    return {"prompt": "Hear " + "<|AUDIO|>" * count, "multi_modal_data": {"audio": sound}}


def test_samples_in_every_form_are_one_sound(llm: LLM) -> None:
    whole = np.round(tone(0.3) * 32_768).astype(np.int16)
    floats = whole.astype(np.float32) / 32_768
    forms: list[Any] = [
        (floats, RATE),
        floats,
        floats.astype(np.float64),
        floats.tolist(),
        torch.from_numpy(floats),
        (torch.from_numpy(floats), RATE),
        whole,
        (whole, float(RATE)),
        (np.stack([floats, floats]), RATE),
        (np.stack([floats, floats], 1), RATE),
        [floats],
        floats[None],
        {"array": floats, "sampling_rate": RATE},
    ]
    outputs = llm.generate([ask(form) for form in forms], SHORT, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    two = llm.generate([ask([floats, (whole, RATE)], 2)], SHORT, use_tqdm=False)
    assert (two[0].prompt_token_ids or []).count(49152) == 2 * 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a.wav", "is text"),
        (17, "is a int"),
        (np.zeros(0, np.float32), "holds no samples"),
        ([], "0 sounds and 1 place for them"),
        (np.zeros(300, np.float32), "less than one token"),
        (tone(1.1), "at most 1 s"),
        (np.zeros(RATE * 700, np.float32), "lasts 700 s; at most 600 s"),
        (np.array([0.1, np.nan] * 900), "no numbers"),
        (np.array([0.1, np.inf] * 900), "no numbers"),
        (np.array([1e300] * 900), "no numbers"),
        (np.zeros(900, np.int64), "array of int64"),
        (np.zeros(900, bool), "array of bool"),
        (np.array(["a"] * 900), "array of <U1"),
        ([[0.1] * 900, [0.3] * 900], "2 sounds and 1 place for them"),
        ((tone(0.1), 0), "0 samples in a second"),
        ((tone(0.1), 10**9), "samples in a second"),
        ((tone(0.1), float("nan")), "has the rate nan"),
        ((tone(0.1), True), "has the rate True"),
        ((np.zeros((900, 40), np.float32), RATE), "40 channels"),
        ((np.zeros((9, 9, 9), np.float32), RATE), "shape (9, 9, 9)"),
        (torch.zeros(2, 900), "embeddings"),
        ({"array": None}, "is a dict"),
    ],
)
def test_what_is_no_sound_costs_its_own_row(llm: LLM, given: Any, said: str) -> None:
    bad, good = llm.generate([ask(given), ask(tone(0.2))], SHORT, on_error="return", use_tqdm=False)
    assert good.error is None
    assert isinstance(bad.error, InvalidPrompt) and said in str(bad.error)


def test_chats_hold_sounds(llm: LLM, hearing: TinyModel) -> None:
    pytest.importorskip("soundfile")
    data = wav(tone(0.3))
    (hearing.path / "a.wav").write_bytes(data)
    text = base64.b64encode(data).decode()
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{text}"}},
        {"type": "audio_url", "audio_url": (hearing.path / "a.wav").as_uri()},
        {"type": "audio", "audio": data},
        {"audio_url": {"url": f"data:audio/wav;base64,{text}"}, "uuid": "a"},
    ]
    said = {"type": "text", "text": "what is <|AUDIO|>?"}
    chats = [[{"role": "user", "content": [part, said]}] for part in parts]
    outputs = llm.chat(chats, SHORT, use_tqdm=False)
    assert len({tuple(output.prompt_token_ids or ()) for output in outputs}) == 1
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert (outputs[0].prompt_token_ids or []).count(49152) == 7
    with pytest.raises(InvalidPrompt, match="has no sound"):
        llm.chat([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}])
    with pytest.raises(NotSupported, match="reads sounds alone"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}])


def test_sounds_are_numbered_where_a_template_takes_text(hearing: TinyModel) -> None:
    plain = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    parts = [{"type": "audio", "audio": tone(0.2)}, {"type": "audio", "audio": tone(0.2, 1)}]
    chat = [{"role": "user", "content": [parts[0], {"type": "text", "text": "hm"}, parts[1]]}]
    with hearing.llm() as llm:
        [output] = llm.chat([chat], SHORT, chat_template=plain, use_tqdm=False)
    one = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    assert output.prompt == f"Audio 1: {one}\nAudio 2: {one}\nhm"


def test_other_media_and_too_many_are_refused(llm: LLM, hearing: TinyModel) -> None:
    given = {"audio": tone(0.2), "image": picture(9, 9)}
    with pytest.raises(NotSupported, match="this model reads sounds alone"):
        llm.generate({"prompt": "<|AUDIO|>", "multi_modal_data": given}, SHORT)
    with pytest.raises(InvalidPrompt, match="names two different sounds"):
        llm.generate(
            [{**ask(tone(0.2, seed)), "multi_modal_uuids": {"audio": "b"}} for seed in (0, 1)]
        )
    with (
        hearing.llm(limit_mm_per_prompt={"audio": 1}) as limited,
        pytest.raises(InvalidPrompt, match="2 sounds; limit_mm_per_prompt allows 1"),
    ):
        limited.generate(ask([tone(0.2), tone(0.2)], 2), SHORT)
    with (
        hearing.llm(limit_mm_per_prompt={"audio": 0}) as deaf,
        pytest.raises(NotSupported, match="text alone"),
    ):
        deaf.generate(ask(tone(0.2)), SHORT)


def test_each_sound_is_encoded_once(hearing: TinyModel) -> None:
    sounds = [tone(0.2, seed) for seed in range(3)]
    with hearing.llm() as llm:
        llm.generate([ask(sounds[i % 3]) for i in range(30)], SHORT, use_tqdm=False)
        assert llm._session.model.executor.shelf.num_encoded == 3
