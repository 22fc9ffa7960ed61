"""Videos of GLM's families against Transformers: greedy tokens with frames, images and text
between, the text of a prompt, the frames that are used of a file, and what configs say of that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quire import SamplingParams
from quire.errors import CorruptModel, InvalidPrompt
from quire.families.media.glm4v import FAMILIES
from quire.families.media.glm_videos import TimedVideos, reader
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, VideoShape
from tests.media.families import SEEING
from tests.media.grids import GROUPED, glm_inputs
from tests.media.test_families import COUNT, Written, check
from tests.media.test_processor_files import config
from tests.media.test_videos import SHORT, clip, mp4, normalised
from tests.media.tiny import FIRST_ADDED, TinyModel, picture, save_tiny
from tests.parity.test_same_tokens import preempt_every_second_step

RATE = 5.0  # frames in a second
IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
BEGUN, ENDED = FIRST_ADDED + 4, FIRST_ADDED + 5
FILE = {
    **{
        key: GROUPED[key] for key in ("patch_size", "merge_size", "temporal_patch_size", "resample")
    },
    "size": {"shortest_edge": 64, "longest_edge": 1 << 20},
}
KINDS = {family.name: "Glm46V" if i > 1 else "Glm4v" for i, family in enumerate(FAMILIES)}
ASKED: list[tuple[str, list[list[Image.Image]], list[Image.Image]]] = [
    (f"Look {VIDEO} what is it?", [clip(5)], []),
    (f"This {IMAGE}\nand that{VIDEO} differ.", [clip(4, 1)], [picture(40, 30)]),
    (f"{VIDEO}{VIDEO} well", [clip(2, 2, (24, 32)), clip(6, 3)], []),
    ("Nothing to see here.", [], []),
    (f"{VIDEO} first, then {IMAGE}", [clip(3, 1)], [picture(60, 20)]),
]


def saved(name: str, path: Path) -> TinyModel:
    family = SEEING[name]
    made = save_tiny(path, family.make(), family.added, family.processor)
    said = {**FILE, "video_processor_type": f"{KINDS[name]}VideoProcessor"}
    (path / "video_preprocessor_config.json").write_text(json.dumps(said))
    return made


@pytest.fixture(scope="module", params=KINDS)
def model(request: Any, tmp_path_factory: Any) -> TinyModel:
    return saved(request.param, tmp_path_factory.mktemp("model"))


def prompts() -> list[Any]:
    made = []
    for text, videos, images in ASKED:
        given = [(np.stack([np.asarray(f) for f in v]), {"fps": RATE}) for v in videos]
        made.append({"prompt": text, "multi_modal_data": {"video": given, "image": images}})
    return made


def inputs_of(
    videos: list[list[Image.Image]], images: list[Image.Image], ids: list[int]
) -> dict[str, Any]:
    """What `generate` of Transformers takes; frames have a size already that is kept."""
    made: dict[str, Any] = glm_inputs(GROUPED, images) if images else {}
    patches, grids = [], []
    for frames in videos:
        numbers = normalised(frames)
        numbers = torch.cat([numbers, numbers[-1:]])[: len(frames) + len(frames) % 2]
        long, high, wide = len(numbers) // 2, numbers.shape[2] // 4, numbers.shape[3] // 4
        cut = numbers.view(long, 2, 3, high // 2, 2, 4, wide // 2, 2, 4)
        cut = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        patches.append(cut.reshape(long * high * wide, -1))
        grids.append([long, high, wide])
    if videos:
        made["pixel_values_videos"] = torch.cat(patches)
        made["video_grid_thw"] = torch.tensor(grids)
    if made:
        given = np.array(ids)
        within = np.cumsum(given == BEGUN) > np.cumsum(given == ENDED)
        kinds = np.where(given == FIRST_ADDED, 1 + within, 0)
        made["mm_token_type_ids"] = torch.tensor(kinds[None])
    return made


@pytest.fixture(scope="module")
def expected(model: TinyModel) -> list[Written]:
    """Transformers takes the tokens of videos for those of images, too, and so refuses prompts with
    both: here it is told which are whose."""
    with model.llm() as llm:
        outputs = llm.generate(prompts(), SamplingParams(max_tokens=1), use_tqdm=False)
    found, inner = [], model.module.model
    for output, (_, videos, images) in zip(outputs, ASKED, strict=True):
        ids = list(output.prompt_token_ids or [])
        given = inputs_of(videos, images, ids)
        kinds = given.get("mm_token_type_ids", torch.zeros(1, len(ids)))

        def masks(of: Any, embeds: Any, kinds: torch.Tensor = kinds, **more: Any) -> Any:
            wide = kinds[..., None].expand_as(embeds)
            return wide == 1, wide == 2

        inner.get_placeholder_mask = masks
        found.append(model.written(ids, COUNT, **given))
        del inner.get_placeholder_mask
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 40, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 24, "max_model_len": 380},
    ],
    ids=["chunks", "preempted"],
)
def test_greedy_tokens_are_those_of_transformers(
    model: TinyModel, expected: list[Written], options: dict[str, Any]
) -> None:
    given = prompts()
    with model.llm(**options) as llm:
        if "num_gpu_blocks_override" in options:
            preempt_every_second_step(llm._session.engine.scheduler)
        check(llm, given, expected)
        check(llm, given[::-1], expected[::-1])


def test_files_chats_and_single_frames_are_read(model: TinyModel) -> None:
    frames = clip(3)
    about = (frames, {"fps": RATE})
    with model.llm() as llm:
        given: list[Any] = [about, (clip(1), {"fps": RATE}), mp4(1), mp4(40)]
        asked: list[Any] = [
            {"prompt": f"Look {VIDEO}", "multi_modal_data": {"video": one}} for one in given
        ]
        outputs = llm.generate(asked, SHORT, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == 3 for output in outputs)
        chat = [{"role": "user", "content": [{"type": "video", "video": about}]}]
        plain = "{% for m in messages %}Look {{ m['content'] }}{% endfor %}"
        [said] = llm.chat([chat], SHORT, chat_template=plain, use_tqdm=False)
        assert said.prompt_token_ids == outputs[0].prompt_token_ids


def test_token_ids_may_have_places_for_images_and_videos_in_any_order(model: TinyModel) -> None:
    """Their rows have the same token, so that only the order of their places tells them apart."""
    both = prompts()[4]
    with model.llm() as llm:
        [said] = llm.generate([both], SHORT, use_tqdm=False)
        tokenizer, media = llm.get_tokenizer(), both["multi_modal_data"]
        ids = tokenizer.encode(both["prompt"], add_special_tokens=False)
        given: Any = {"prompt_token_ids": ids, "multi_modal_data": media}
        whole: Any = {**given, "prompt_token_ids": said.prompt_token_ids}
        found, refused = llm.generate([given, whole], SHORT, on_error="return", use_tqdm=False)
        assert found.prompt_token_ids == said.prompt_token_ids
        assert found.outputs[0].token_ids == said.outputs[0].token_ids
        assert isinstance(refused.error, InvalidPrompt)
        assert "nothing says which are whose" in str(refused.error)
        for text, data in ((f"{VIDEO}{VIDEO}", media), (IMAGE, {"video": media["video"]})):
            bad: Any = {"prompt": text, "multi_modal_data": data}
            [output] = llm.generate([bad], SHORT, on_error="return", use_tqdm=False)
            assert isinstance(output.error, InvalidPrompt)
        wrong = {"fps": 4}
        newer = model.path.joinpath("video_preprocessor_config.json").read_text()
        bad = {**both, "mm_processor_kwargs": wrong}
        [output] = llm.generate([bad], SHORT, on_error="return", use_tqdm=False)
        assert ("rates of its own" in str(output.error)) == ("Glm46V" in newer)


def rules_of(kind: str, **said: Any) -> TimedVideos:
    named = {"processor_class": f"{kind}Processor", "video_processor_type": f"{kind}VideoProcessor"}
    made: TimedVideos = reader("Glm4v")(config({**FILE, **named, **said}, vision_config={}))
    return made


@pytest.mark.parametrize("kind", ["Glm4v", "Glm46V"])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_prompt_has_the_times_that_transformers_writes(kind: str, times: int) -> None:
    import transformers.models.glm4v.processing_glm4v as old
    import transformers.models.glm46v.processing_glm46v as new
    from transformers.video_utils import VideoMetadata

    theirs: Any = {"Glm4v": old.Glm4vProcessor, "Glm46V": new.Glm46VProcessor}[kind]
    said = SimpleNamespace(image_token="<|image|>", video_processor=SimpleNamespace(merge_size=2))
    said.replace_frame_token_id = lambda *given, **more: theirs.replace_frame_token_id(
        said, *given, **more
    )
    rules = rules_of(kind, temporal_patch_size=times)
    for at in ([0, 3, 9, 14], [0, 1, 2, 5, 8], [0, 40, 41, 90, 170, 400]):
        placed = rules.place(VideoShape(len(at), 32, 24, 7.5, tuple(at), 500), together=1)
        assert placed.grid is not None
        grid = torch.tensor([[placed.grid[0], placed.grid[1] * 2, placed.grid[2] * 2]])
        metadata = VideoMetadata(total_num_frames=500, fps=7.5, frames_indices=at)
        wanted = theirs.replace_video_token(
            said, {"video_grid_thw": grid, "video_metadata": [metadata]}, 0
        )
        rows = placed.grid[1] * placed.grid[2]
        assert placed.runs == (rows,) * placed.grid[0]
        assert placed.text.replace("<|image|>", "<|image|>" * rows) == wanted


@pytest.mark.parametrize("kind", ["Glm4v", "Glm46V"])
def test_frames_of_a_file_are_chosen_as_transformers_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.models.glm4v.video_processing_glm4v as old

    theirs: Any = old.Glm4vVideoProcessor
    if kind == "Glm46V":  # the module takes functions from a package that sampling does not need
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            empty: Any = ModuleType(name)
            empty.functional = None
            monkeypatch.setitem(sys.modules, name, empty)
        import transformers.models.glm46v.video_processing_glm46v as new

        theirs = new.Glm46VVideoProcessor
    for times in (1, 2, 4):
        rules = rules_of(kind, temporal_patch_size=times, max_duration=50, fps=3)
        said = SimpleNamespace(fps=3, max_duration=50, temporal_patch_size=times)
        for frames, rate in (
            *((1, 30.0), (3, 30.0), (7, 1.5), (29, 29.97), (40, 10.0), (100, 25.0), (120, 60.0)),
            *((900, 24.0), (1210, 24.0), (4000, 7.0), (9000, 30.0), (50_000, 20.0)),
            *((60, 0.02), (100, 1.0), (145, 2.9)),
        ):
            about = SimpleNamespace(total_num_frames=frames, fps=rate, duration=frames / rate)
            wanted = theirs.sample_frames(said, about).tolist() or [0, 0]
            assert rules.chosen(VideoShape(frames, 32, 24, rate, sampled=False)) == wanted, frames


def test_frames_share_the_bounds_of_an_area() -> None:
    from transformers.models.glm4v.video_processing_glm4v import smart_resize

    bounds = {"shortest_edge": 9_000, "longest_edge": 20_000}
    rules = rules_of("Glm4v", size=bounds)
    for frames, width, height in (
        (2, 32, 24),
        (7, 90, 70),
        (4, 300, 20),
        (40, 640, 480),
        (3, 5, 9),
    ):
        placed = rules.place(VideoShape(frames, width, height, 2.0), together=1)
        high, wide = smart_resize(frames, height, width, 2, 8, 9_000, 20_000)
        assert placed.grid == (-(-frames // 2), high // 8, wide // 8)


@pytest.mark.parametrize(
    ("said", "asked", "message"),
    [
        ({"video_processor_type": "Qwen2VLVideoProcessor"}, {}, "a class of Glm4v or of Glm46V"),
        ({"processor_class": "LlavaProcessor"}, {}, "a class of Glm4v or of Glm46V"),
        ({"video_processor_type": "Glm46VVideoProcessor"}, {"fps": 4}, "rates of its own"),
        ({"video_processor_type": "Glm46VVideoProcessor"}, {"max_duration": 4}, "rates of its own"),
        ({"max_duration": 0}, {}, "max_duration"),
        ({"fps": -1}, {}, "fps"),
    ],
)
def test_what_no_processor_of_these_models_says_is_refused(
    said: Any, asked: Any, message: str
) -> None:
    with pytest.raises(CorruptModel, match=message):
        reader("Glm4v")(config({**FILE, **said}, asked, vision_config={}))


def test_names_of_classes_say_how_times_are_written() -> None:
    read = reader("Glm4v")
    for said, whole, sampled in (
        ({}, True, True),
        ({"processor_class": "Glm46VProcessor"}, False, True),
        ({"image_processor_type": "Glm46VImageProcessorFast"}, False, True),
        ({"video_processor": {"video_processor_type": "Glm46VVideoProcessor"}}, False, False),
    ):
        rules = read(config({**FILE, **said}, vision_config={}))
        assert (rules.whole_seconds, rules.longest is not None) == (whole, sampled), said
    assert reader("Glm46V")(config(FILE, vision_config={})).longest is None


def test_colours_are_those_of_clip_where_nothing_is_said() -> None:
    rules = rules_of("Glm4v")
    assert (rules.normalised.mean, rules.normalised.std) == (CLIP_MEAN, CLIP_STD)
    assert rules.placeholder == "<|video|>" and rules.pad == "<|image|>"
