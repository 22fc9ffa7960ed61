"""LLaVA 1.5 against Transformers: the same pixels, the same ids, the same tokens."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quire import LLM, SamplingParams
from quire.errors import BatchError, CorruptModel, InvalidPrompt, NotSupported, PromptTooLong
from quire.families.media.family import MediaConfig
from quire.families.media.llava import read
from quire.families.media.llava_next import read as read_next
from quire.families.media.llava_next import read_onevision
from quire.inputs.media import images
from quire.inputs.media.identity import content_hash
from quire.plan.plan import MediaCounts
from tests.media.tiny import FIRST_ADDED, TEXT, TinyModel, picture, save_tiny

PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 56, "width": 56},
    "resample": 3,
}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
IMAGES = [picture(90, 70), picture(60, 120, 1), picture(56, 56, 2), picture(31, 200, 3)]
PROMPTS: list[Any] = [
    {"prompt": "Look <image> what is it?", "multi_modal_data": {"image": IMAGES[0]}},
    {"prompt": "<image>", "multi_modal_data": {"image": IMAGES[3]}},
    {"prompt": "This <image>\nand that<image> differ.", "multi_modal_data": {"image": IMAGES[1:3]}},
    {"prompt": "Again <image><image> twice", "multi_modal_data": {"image": [IMAGES[0]] * 2}},
    "Nothing to see here.",
]
SEEN = [[IMAGES[0]], [IMAGES[3]], IMAGES[1:3], [IMAGES[0]] * 2, []]


def make(path: Path) -> TinyModel:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
    )
    config = LlavaConfig(
        vision_config=vision.to_dict(),
        text_config=LlamaConfig(**TEXT).to_dict(),
        image_token_index=FIRST_ADDED,
    )
    return save_tiny(path, Llava(config), ["<image>"], PROCESSOR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    return make(tmp_path_factory.mktemp("llava"))


def pixel_values(images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if "type" not in k})
    return dict(processor(images, return_tensors="pt")) if images else {}


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm() as made:
        yield made


@pytest.fixture(scope="module")
def expected(model: TinyModel, llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=1), use_tqdm=False)
    return [
        model.greedy(output.prompt_token_ids or [], 12, **pixel_values(images))
        for output, images in zip(outputs, SEEN, strict=True)
    ]


def tokens(llm: LLM, prompts: list[Any] = PROMPTS, params: SamplingParams = GREEDY) -> list[Any]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_are_those_of_transformers(llm: LLM, expected: list[list[int]]) -> None:
    assert tokens(llm) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 6, "max_model_len": 80},
        {"async_scheduling": True, "max_num_batched_tokens": 20},
        {"block_size": 4, "max_num_batched_tokens": 33},
    ],
    ids=lambda given: "-".join(given),
)
def test_nothing_that_plans_changes_the_tokens(
    model: TinyModel, expected: list[list[int]], options: dict[str, Any]
) -> None:
    """Chunks that cut spans, no cache, preemption, plans in flight, blocks that cut spans."""
    with model.llm(**options) as llm:
        assert tokens(llm) == expected
        assert tokens(llm, PROMPTS[::-1]) == expected[::-1]


def test_a_shelf_of_one_item_is_enough(model: TinyModel, expected: list[list[int]]) -> None:
    with model.llm(max_num_batched_tokens=9, max_num_seqs=9) as llm:
        llm._session.engine.scheduler.media._shelf_rows = 0
        assert tokens(llm) == expected
        assert len(llm._session.model.executor.shelf._rows) <= 1


def test_ids_have_one_placeholder_for_each_row(llm: LLM) -> None:
    output = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0]
    assert output.prompt == "Look <image> what is it?"
    assert (output.prompt_token_ids or []).count(FIRST_ADDED) == 16


def test_token_prompts_hold_one_placeholder_or_all(llm: LLM, expected: list[list[int]]) -> None:
    whole = llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)[0].prompt_token_ids or []
    kept = [t for i, t in enumerate(whole) if t != FIRST_ADDED or whole[i - 1] != FIRST_ADDED]
    assert len(whole) == len(kept) + 30
    media = {"image": IMAGES[1:3]}
    given: list[Any] = [{"prompt_token_ids": i, "multi_modal_data": media} for i in (whole, kept)]
    assert tokens(llm, given) == [expected[2]] * 2


def test_a_thousand_prompts_over_few_images_encode_each_once(model: TinyModel) -> None:
    images = [picture(40 + i, 50, i) for i in range(50)]
    prompts: list[Any] = [
        {"prompt": f"<image> question {i // 50}", "multi_modal_data": {"image": images[i % 50]}}
        for i in range(1000)
    ]
    with model.llm() as llm:
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        assert llm._session.model.executor.shelf.num_encoded == 50
        assert llm._session.media.reader.pool.num_bytes == 0
    few = [prompt for i, prompt in enumerate(prompts) if i % 50 < 8][:80]
    with model.llm(enable_prefix_caching=False) as llm:  # where no KV stands in for an image
        llm.generate(few, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        pool, shelf = llm._session.media.reader.pool, llm._session.model.executor.shelf
        assert shelf.num_encoded == 8
        begun: list[int] = []
        setattr(pool, "hold", begun.append)  # noqa: B010 - of what is prepared
        llm.generate(few, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        assert shelf.num_encoded == 8 and not begun  # in another call neither


def test_a_plan_counts_media(llm: LLM) -> None:
    prompts: list[Any] = [
        {"prompt": f"<image> {word}", "multi_modal_data": {"image": image}}
        for word, image in (("one", IMAGES[0]), ("two", IMAGES[0]), ("three", IMAGES[1]))
    ]
    plan = llm.plan(prompts, GREEDY)
    assert plan.media == MediaCounts(3, 2, 48, 32)
    assert "3 items of 48 tokens; 2 different to encode, of 32 tokens" in plan.explain()
    assert llm.plan("text alone", GREEDY).media is None


def test_what_was_encoded_can_be_forgotten(model: TinyModel) -> None:
    with model.llm(enable_prefix_caching=False) as llm:
        shelf = llm._session.model.executor.shelf
        first = tokens(llm, PROMPTS[:1])
        assert tokens(llm, PROMPTS[:1]) == first and shelf.num_encoded == 1
        llm.reset_mm_cache()
        assert tokens(llm, PROMPTS[:1]) == first and shelf.num_encoded == 2
        llm.sleep(level=2)
        llm.wake_up()
        assert tokens(llm, PROMPTS[:1]) == first and shelf.num_encoded == 3


def test_another_image_shares_nothing_from_it_on(llm: LLM) -> None:
    words = "many words that come first and fill a block or two of the cache " * 3
    first, second = picture(80, 80, 11), picture(80, 80, 12)
    cached = [
        llm.generate(
            {"prompt": words + "<image> so?", "multi_modal_data": {"image": image}},
            GREEDY,
            use_tqdm=False,
        )[0].num_cached_tokens
        for image in (first, second, first)
    ]
    before = len(llm.get_tokenizer().encode(words)) // 16 * 16
    assert cached[0] == 0 and cached[1] == before and (cached[2] or 0) > before


def test_samples_fork_behind_an_image(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    whole = llm.generate(PROMPTS[0], params, use_tqdm=False)[0]
    assert len({tuple(one.token_ids) for one in whole.outputs}) > 1


def test_penalties_and_logprobs_read_the_vocabulary(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, repetition_penalty=1.3, prompt_logprobs=0, logprobs=1, max_tokens=3
    )
    output = llm.generate(PROMPTS[0], params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    ids = output.prompt_token_ids or []
    assert all(
        token in line for token, line in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
    )


def test_beams_and_choices_see_images(llm: LLM) -> None:
    from quire import BeamSearchParams
    from quire.sampling_params import StructuredOutputsParams

    [found] = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=3, max_tokens=4))
    assert len(found.sequences) == 3
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a cat", "a dog"]))
    assert llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].text in ("a cat", "a dog")


@pytest.mark.parametrize(
    ("prompt", "error", "says"),
    [
        (
            {"prompt": "no place", "multi_modal_data": {"image": IMAGES[0]}},
            InvalidPrompt,
            "1 image and 0 places for them",
        ),
        (
            {"prompt": "<image>", "multi_modal_data": {"image": IMAGES[:2]}},
            InvalidPrompt,
            "2 images and 1 place for them",
        ),
        ("where is <image>?", InvalidPrompt, "0 images and 1 place.*leave '<image>' out"),
        ([5, FIRST_ADDED, 6], InvalidPrompt, "0 images and 1 place.*multi_modal_data"),
        ({"prompt": "<image>", "multi_modal_data": {"image": "cat.jpg"}}, InvalidPrompt, "is text"),
        (
            {"prompt": "<image>", "multi_modal_data": {"picture": IMAGES[0]}},
            InvalidPrompt,
            "'picture'",
        ),
        ({"prompt": "<image>", "multi_modal_data": {"audio": [0.0]}}, NotSupported, "'audio'"),
        (
            {"prompt": "<image>", "multi_modal_data": {"image": Path("/etc/passwd")}},
            InvalidPrompt,
            "allowed_local_media_path",
        ),
        (
            {"prompt": "<image>" * 300, "multi_modal_data": {"image": [IMAGES[0]] * 300}},
            PromptTooLong,
            "4800 of them.*fewer or smaller media",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_cannot_be_read_says_why(
    llm: LLM, prompt: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        llm.generate([prompt], GREEDY, use_tqdm=False)


def test_a_model_without_its_tower_runs_on_text(model: TinyModel, expected: list[Any]) -> None:
    with model.llm(limit_mm_per_prompt={"image": 0}) as llm:
        assert tokens(llm, PROMPTS[4:]) == expected[4:]
        with pytest.raises(NotSupported, match="multi_modal_data"):
            llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)


SQUARE = {"height": 56, "width": 56}
SHORT = {"size": {"shortest_edge": 60}, "crop_size": SQUARE}
PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": PROCESSOR,
    "clip, stretched and cropped": {**PROCESSOR, "size": {"height": 60, "width": 60}},
    "clip, the nearest pixel": {**PROCESSOR, "resample": 0},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": SQUARE},
    "llava": {"image_processor_type": "LlavaImageProcessor", **SHORT, "do_pad": True},
    "llava, no mean taken off": {
        "image_processor_type": "LlavaImageProcessor",
        **SHORT,
        "do_pad": True,
        "do_normalize": False,
    },
}


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
def test_pixels_are_those_of_transformers(processor: dict[str, Any]) -> None:
    kind = processor["image_processor_type"].removesuffix("ImageProcessor")
    name = f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}"
    made_by = getattr(import_module(name), f"{kind}ImageProcessorPil")
    theirs = made_by(**{k: v for k, v in processor.items() if "type" not in k})
    model = {"vision_config": {"patch_size": 14, "model_type": f"{kind.lower()}_vision_model"}}
    config = MediaConfig.of(model, processor, {}, lambda _: None)
    rules = read(config)
    rng = np.random.default_rng(5)
    for width, height in rng.integers(1, 300, (60, 2)).tolist():
        image = picture(width, height)
        wanted = theirs([image], return_tensors="np")["pixel_values"][0]
        ours = rules.prepare(image, together=1)["pixels"].astype(np.float32)
        mean, std = (
            np.array(x)[:, None, None] for x in (rules.normalised.mean, rules.normalised.std)
        )
        assert np.allclose((ours / 255 - mean) / std, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("tower", "kept", "count"),
    [
        ("clip", "default", 16),
        ("clip", "full", 17),
        ("siglip", "full", 16),
        ("siglip", "default", 15),
    ],
)
def test_rows_of_a_square_follow_from_its_tower(tower: str, kept: str, count: int) -> None:
    vision = {"patch_size": 14, "model_type": f"{tower}_vision_model"}
    model = {"vision_config": vision, "vision_feature_select_strategy": kept}
    rules = read(MediaConfig.of(model, PROCESSOR, {}, lambda _: None))
    assert rules.place(90, 70, together=1).runs == (count,)
    fits = (tower, kept) in (("clip", "default"), ("siglip", "full"))
    with nullcontext() if fits else pytest.raises(CorruptModel, match="select_strategy must be"):
        read_next(MediaConfig.of(model, PROCESSOR, {}, lambda _: None))


def test_an_image_too_thin_to_be_enlarged_is_refused_before_it_is() -> None:
    """1 x 40,000 pixels are few, and would take 13.5 GB at 336 x 13,440,000."""
    model = {"vision_config": {"patch_size": 14}}
    square = {**PROCESSOR, "do_pad": True, "image_processor_type": "LlavaImageProcessor"}
    several: dict[str, Any] = {}  # of which each is put on a square
    tried: Any = ((PROCESSOR, read, 1), (square, read, 1), (several, read_onevision, 2))
    for said, reads, together in tried:
        rules = reads(MediaConfig.of(model, said, {}, lambda _: None))
        for width, height in ((1, 60_000), (60_000, 1)):
            with pytest.raises(InvalidPrompt, match=f"{width:,} x {height:,} pixels.*Crop it"):
                rules.place(width, height, together=together)
        assert rules.place(300, 3000, together=together).runs


def test_a_size_that_varies_is_refused() -> None:
    said = {**PROCESSOR, "do_center_crop": False}
    with pytest.raises(CorruptModel, match="do_center_crop must be true where size has a shortest"):
        read(MediaConfig.of({"vision_config": {}}, said, {}, lambda _: None))


def test_an_image_of_many_prompts_is_read_once_in_a_call(llm: LLM, monkeypatch: Any) -> None:
    seen: list[bytes] = []

    def counted(about: bytes, data: bytes) -> bytes:
        seen.append(about)
        return content_hash(about, data)

    monkeypatch.setattr(images, "content_hash", counted)
    image = IMAGES[0].copy()
    many = [{"prompt": f"{i} <image>", "multi_modal_data": {"image": image}} for i in range(5)]
    before = tokens(llm, many)
    assert len(seen) == 1
    image.paste((255, 0, 0), (0, 0, 60, 60))
    assert tokens(llm, many) != before, "what a caller changes between calls is seen"
    assert len(seen) == 2


def test_a_tower_that_is_not_whole_is_refused_and_its_text_runs(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make(tmp_path)
    [file] = tmp_path.glob("*.safetensors")
    weights = load_file(file)
    missing = next(name for name in weights if "patch_embedding" in name)
    del weights[missing]
    save_file(weights, file, metadata={"format": "pt"})
    wanted = "patch_embedding.*missing.*language_model_only=True"
    with model.llm() as llm, pytest.raises(BatchError, match=wanted):
        llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
    with model.llm(language_model_only=True) as llm:
        assert llm.generate(["Look"], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_pixels_count_where_they_are_more_than_what_is_made_of_them(
    llm: LLM, monkeypatch: Any
) -> None:
    """Each thread would else have a largest image in hand, at a gigabyte each."""
    held, pool = list[int](), llm._session.media.reader.pool
    hold = pool.hold

    def noted(count: int) -> None:
        held.append(count)
        hold(count)

    monkeypatch.setattr(pool, "hold", noted)
    small, large = picture(9, 9, 71), picture(300, 200, 72)
    tokens(llm, [{"prompt": "<image>", "multi_modal_data": {"image": x}} for x in (small, large)])
    assert sorted(held) == [3 * 56 * 56, 3 * 300 * 200] and pool.num_bytes == 0
