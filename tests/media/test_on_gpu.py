"""Every family that sees or hears on a GPU, against Transformers: in float32 the same tokens and
logprobs, in bf16 logprobs that are no further off than those of Transformers in bf16."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import SamplingParams
from tests.executor.cuda.test_gpu import check_rounding
from tests.media import test_families as seeing
from tests.media import test_foreign as foreign
from tests.media import test_glm_videos as glm_videos
from tests.media import test_hearing as hearing
from tests.media import test_llava as llava
from tests.media import test_videos as videos
from tests.media import test_whisper as whisper
from tests.media import tiny
from tests.media.families import SEEING
from tests.media.hearing import HEARING
from tests.media.tiny import TinyModel, save_tiny
from tests.media.whisper import features

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
PRECISE = 2e-3  # of logprobs in float32
COUNT = 20
GREEDY = SamplingParams(
    temperature=0, max_tokens=COUNT, ignore_eos=True, logprobs=0, prompt_logprobs=0
)
SAMPLED = SamplingParams(n=3, seed=5, max_tokens=9)
Inputs = Callable[[Sequence[int], int], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A tiny model, prompts, and what Transformers is given with the ids of prompt i."""

    model: TinyModel
    prompts: list[Any]
    inputs: Inputs
    pass_tokens: int = 40


def seen_by(name: str, path: Path) -> Case:
    family = SEEING[name]
    model = save_tiny(path, family.make(), family.added, family.processor)
    images = seeing.images_of(family)

    def inputs(ids: Sequence[int], i: int) -> dict[str, Any]:
        made = seeing.inputs_of(family, images[i], list(ids))
        if (kinds := made.get(family.typed)) is not None:  # of the answer's tokens, too
            made[family.typed] = torch.nn.functional.pad(kinds, (0, len(ids) - kinds.shape[1]))
        return made

    return Case(model, seeing.prompts_of(family), inputs, family.pass_tokens)


def heard_by(name: str, path: Path) -> Case:
    family = HEARING[name]
    sounds = [some for _, some in hearing.asked(family)]
    return Case(
        hearing.saved(name, path),
        hearing.prompts_of(family),
        lambda ids, i: family.inputs(sounds[i]) if sounds[i] else {},
    )


def seen_by_others(make: Callable[[Path], TinyModel], path: Path) -> Case:
    from transformers import AutoProcessor

    model = make(path)
    processor = AutoProcessor.from_pretrained(path)

    def inputs(ids: Sequence[int], i: int) -> dict[str, Any]:
        text, images = foreign.asked()[i]
        how = {"return_tensors": "pt", "padding": False}
        made = dict(processor(images=images or None, text=[text], **how))
        return {k: v for k, v in made.items() if k not in ("input_ids", "attention_mask")}

    prompts = [{"prompt": t, "multi_modal_data": {"image": some}} for t, some in foreign.asked()]
    return Case(model, prompts, inputs)


def filmed_for(name: str, path: Path) -> Case:
    given = videos.asked()
    return Case(
        videos.saved(name, path),
        videos.prompts(),
        lambda ids, i: videos.inputs_of(given[i][1], given[i][2], list(ids), name),
    )


def filmed_for_glm(name: str, path: Path) -> Case:
    """Without prompts that have images, too, which Transformers refuses."""
    kept = [i for i, (_, filmed, images) in enumerate(glm_videos.ASKED) if not (filmed and images)]
    given = [glm_videos.ASKED[i] for i in kept]
    return Case(
        glm_videos.saved(name, path),
        [glm_videos.prompts()[i] for i in kept],
        lambda ids, i: glm_videos.inputs_of(given[i][1], given[i][2], list(ids)),
    )


def seen_by_llava(path: Path) -> Case:
    return Case(
        llava.make(path),
        llava.PROMPTS,
        lambda ids, i: llava.pixel_values(llava.SEEN[i]) if llava.SEEN[i] else {},
    )


CASES: dict[str, Callable[[Path], Case]] = {
    "llava": seen_by_llava,
    **{f"{family.name}, videos": partial(filmed_for, family.name) for family in videos.FAMILIES},
    **{f"{name}, videos": partial(filmed_for_glm, name) for name in glm_videos.KINDS},
    **{name: partial(seen_by, name) for name in SEEING},
    **{name: partial(heard_by, name) for name in HEARING},
    "VipLlava": partial(seen_by_others, foreign.vip_llava),
    "AyaVision": partial(seen_by_others, foreign.aya_vision),
}


@pytest.fixture(scope="module", autouse=True)
def tokenizer_of_bytes() -> Iterator[None]:
    """Such machines may reach nothing that is not there."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(tiny, "base_tokenizer", tiny.byte_tokenizer)
        yield


@torch.no_grad()
def logprobs_by(module: Any, ids: list[int], inputs: dict[str, Any]) -> torch.Tensor:
    """Of every token but the first, by Transformers' module, where it is and in its type."""
    device, dtype = module.device, module.dtype
    given = {
        k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()
    }
    text = torch.tensor([ids], device=device)
    logits = module(input_ids=text, attention_mask=torch.ones_like(text), **given).logits[0].float()
    return logits.log_softmax(-1)[:-1].gather(1, text[0, 1:, None])[:, 0].cpu()


def differences(case: Case, dtype: str) -> tuple[list[float], list[float]]:
    """|logprob - that of the module in float32| of all tokens of text, prompts' and answers': ours,
    and the module's in this type."""
    kind, placeholders = getattr(torch, dtype), {*range(seeing.FIRST_ADDED, 10**6)}
    rounded = copy.deepcopy(case.model.module).to(DEVICE, kind).eval()
    exact = copy.deepcopy(rounded).float()
    ours: list[float] = []
    theirs: list[float] = []
    chunks = {"max_num_batched_tokens": case.pass_tokens, "max_num_seqs": 3}
    with case.model.llm(dtype=dtype, device=DEVICE, **chunks) as llm:
        outputs = llm.generate(case.prompts, GREEDY, use_tqdm=False)
    for i, output in enumerate(outputs):
        answer, prompt = output.outputs[0], output.prompt_token_ids or []
        ids = [*prompt, *answer.token_ids]
        told: list[Any] = [*(output.prompt_logprobs or [])[1:], *(answer.logprobs or [])]
        inputs = case.inputs(ids, i)
        wanted, other = (logprobs_by(one, ids, inputs) for one in (exact, rounded))
        for at, token in enumerate(ids[1:]):
            if token not in placeholders:
                ours.append(abs(told[at][token].logprob - float(wanted[at])))
                theirs.append(abs(float(other[at] - wanted[at])))
    return ours, theirs


def older_than(package: str, *wanted: int) -> bool:
    return tuple(int(part) for part in version(package).split(".")[: len(wanted)]) < wanted


@pytest.mark.parametrize("name", CASES)
def test_logprobs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    if name == "qwen2_5_vl, videos" and older_than("transformers", 5, 22):
        pytest.skip("before 5.22 Transformers cuts fractions of seconds between frames")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    case = CASES[name](tmp_path)
    ours, _ = differences(case, "float32")
    print(f"{name}: float32 {max(ours):.2g} of {len(ours)}")
    assert max(ours) <= PRECISE
    ours, theirs = differences(case, "bfloat16")
    check_rounding(name, ours, theirs)


@pytest.fixture(scope="module")
def whisper_model(tmp_path_factory: Any) -> TinyModel:
    return whisper.make(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def written(whisper_model: TinyModel) -> list[whisper.Written]:
    module = whisper_model.module
    return [
        whisper.written(module, whisper.tone(length), whisper.ASKED, whisper.COUNT)
        for length in whisper.LENGTHS
    ]


@pytest.fixture(scope="module")
def sampled(whisper_model: TinyModel) -> list[Any]:
    """What a CPU writes with noise, for the prompts from the last to the first."""
    prompts = [whisper.prompt(length) for length in whisper.LENGTHS] * 2
    with whisper_model.llm() as llm:
        outputs = llm.generate(prompts[::-1], SAMPLED, use_tqdm=False)
    return [[one.token_ids for one in output.outputs] for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 3, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 6, "enforce_eager": True},
        {"batch_invariant": True},
    ],
    ids=["plain", "chunks", "little room", "invariant"],
)
def test_whisper_writes_what_transformers_writes(
    whisper_model: TinyModel,
    written: list[whisper.Written],
    sampled: list[Any],
    options: dict[str, Any],
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    prompts = [whisper.prompt(length) for length in whisper.LENGTHS] * 2
    with whisper_model.llm(device=DEVICE, **options) as llm:
        whisper.check(llm.generate(prompts, whisper.GREEDY, use_tqdm=False), written * 2)
        outputs = llm.generate(prompts[::-1], SAMPLED, use_tqdm=False)
        assert [[one.token_ids for one in output.outputs] for output in outputs] == sampled
        whisper.test_suppressed_tokens_never_come(llm)
        llm.sleep(level=1)
        llm.wake_up()
        whisper.check(llm.generate(prompts[:3], whisper.GREEDY, use_tqdm=False), written[:3])


def test_whisper_in_bf16_is_as_near_as_transformers(whisper_model: TinyModel) -> None:
    rounded = copy.deepcopy(whisper_model.module).bfloat16()
    exact = copy.deepcopy(rounded).float()
    prompts = [whisper.prompt(length) for length in whisper.LENGTHS]
    with whisper_model.llm(device=DEVICE, dtype="bfloat16") as llm:
        outputs = llm.generate(prompts, whisper.GREEDY, use_tqdm=False)
    ours: list[float] = []
    theirs: list[float] = []
    for length, output in zip(whisper.LENGTHS, outputs, strict=True):
        answer = output.outputs[0]
        mel = features(whisper.tone(length))
        ids = torch.tensor([[*whisper.ASKED, *answer.token_ids]])
        made = []
        for module in (exact, rounded):
            with torch.no_grad():
                given = {"input_features": mel.to(module.dtype), "decoder_input_ids": ids[:, :-1]}
                logprobs = module(**given).logits[0].float().log_softmax(-1)
            made.append(logprobs.gather(1, ids[0, 1:, None])[len(whisper.ASKED) - 1 :, 0])
        lines: list[Any] = list(answer.logprobs or [])
        told = [line[t].logprob for t, line in zip(answer.token_ids, lines, strict=True)]
        ours += (torch.tensor(told) - made[0]).abs().tolist()
        theirs += (made[1] - made[0]).abs().tolist()
    check_rounding("whisper", ours, theirs)
