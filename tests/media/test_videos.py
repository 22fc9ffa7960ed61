"""Videos of the families that see them against Transformers: greedy tokens with frames, images and
text between, for chunks that cut spans and in small pools; files are decoded by a library that may
be missing, and what is no video costs its own row."""

from __future__ import annotations

import io
import json
import struct
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from quire.families.fields import Fields
from quire.families.media.qwen_vl import FAMILIES, ShapedImages, ShapedVideos
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Normalised, VideoShape
from quire.inputs.media import videos as reading
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.reader import coordinates_of
from quire.inputs.media.videos import FileVideo
from quire.request import MediaItem, Span
from tests.media.abuse import changed, noisy
from tests.media.families import SEEING, SHAPED, qwen_inputs
from tests.media.test_families import COUNT, Written, check
from tests.media.tiny import FIRST_ADDED, TinyModel, picture, save_tiny
from tests.parity.test_same_tokens import preempt_every_second_step

RATE = 5.0  # frames in a second
SHORT = SamplingParams(temperature=0, max_tokens=3)
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def clip(frames: int, seed: int = 0, size: tuple[int, int] = (32, 24)) -> list[Image.Image]:
    return [picture(*size, 10 * seed + one) for one in range(frames)]


def saved(name: str, path: Path) -> TinyModel:
    family = SEEING[name]
    model = save_tiny(path, family.make(), family.added, family.processor)
    colours = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}  # the newer ones have others
    about = {**SHAPED, **colours, "max_pixels": 1 << 20, "temporal_patch_size": 2}
    (path / "video_preprocessor_config.json").write_text(json.dumps(about))
    return model


@pytest.fixture(scope="module", params=[family.name for family in FAMILIES])
def family(request: Any) -> Any:
    return request.param


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: Any) -> TinyModel:
    return saved(family, tmp_path_factory.mktemp("model"))


def test_frames_as_squares_are_those_of_transformers(tmp_path: Path) -> None:
    family = SEEING["llava_onevision"]
    model = save_tiny(tmp_path, family.make(), family.added, family.processor)
    one, two = clip(3, 1, (56, 56)), clip(5, 2, (56, 56))
    texts: list[tuple[str, list[Any], list[Any]]] = [
        ("Look <video> what is it?", [one], []),
        ("<video> and <video>", [two, two], []),
        ("This <image> is in <video>.", [one], [picture(90, 70)]),
        ("Nothing to see.", [], []),
    ]
    made: list[Any] = [
        {"prompt": text, "multi_modal_data": {"video": [np.stack(v) for v in videos], "image": i}}
        for text, videos, i in texts
    ]
    with model.llm(max_num_batched_tokens=20, max_num_seqs=3) as llm:
        outputs = llm.generate(made, SamplingParams(max_tokens=1), use_tqdm=False)
        expected = []
        for output, (_, videos, images) in zip(outputs, texts, strict=True):
            given = family.inputs(family.processor, images) if images else {}
            if videos:
                given["pixel_values_videos"] = torch.stack([normalised(v) for v in videos])
            ids = list(output.prompt_token_ids or [])
            expected.append(model.written(ids, COUNT, **given))
        check(llm, made, expected)
        assert [ids_of(o).count(FIRST_ADDED + 1) for o in outputs] == [13, 42, 13, 0]
        file = {"prompt": "<video>", "multi_modal_data": {"video": mp4(40)}}
        few = {**file, "mm_processor_kwargs": {"num_frames": 8}}
        outputs = llm.generate([file, few], SHORT, use_tqdm=False)  # type: ignore[list-item]
        assert [ids_of(o).count(FIRST_ADDED + 1) for o in outputs] == [32 * 4 + 1, 8 * 4 + 1]


def ids_of(output: Any) -> list[int]:
    return list(output.prompt_token_ids)


def normalised(frames: list[Image.Image]) -> torch.Tensor:
    """Frames that have the tower's size, as its processor has them."""
    mean, std = torch.tensor(CLIP_MEAN).view(3, 1, 1), torch.tensor(CLIP_STD).view(3, 1, 1)
    pixels = torch.stack([torch.from_numpy(np.array(f)).permute(2, 0, 1) for f in frames])
    return (pixels.float() / 255 - mean) / std


def asked() -> list[tuple[str, list[list[Image.Image]], list[Image.Image]]]:
    """Prompts, their videos and their images."""
    return [
        (f"Look {VIDEO} what is it?", [clip(5)], []),
        (f"This {IMAGE}\nand that{VIDEO} differ.", [clip(4, 1)], [picture(40, 30)]),
        (f"{VIDEO}{VIDEO} well", [clip(2, 2, (24, 32)), clip(6, 3)], []),
        ("Nothing to see here.", [], []),
        (f"{VIDEO} first, then {IMAGE}", [clip(3, 1)], [picture(60, 20)]),
    ]


def prompts() -> list[Any]:
    made = []
    for text, videos, images in asked():
        given = [(np.stack([np.asarray(f) for f in v]), {"fps": RATE}) for v in videos]
        made.append({"prompt": text, "multi_modal_data": {"video": given, "image": images}})
    return made


def inputs_of(
    videos: list[list[Image.Image]], images: list[Image.Image], ids: list[int], family: str
) -> dict[str, Any]:
    """What `generate` of Transformers takes; frames have a size already that is kept."""
    made: dict[str, Any] = qwen_inputs(SHAPED, images) if images else {}
    if videos:
        patches, grids = [], []
        for frames in videos:
            numbers = normalised(frames)
            numbers = torch.cat([numbers, numbers[-1:]])[: len(frames) + len(frames) % 2]
            long, high, wide = len(numbers) // 2, numbers.shape[2] // 4, numbers.shape[3] // 4
            cut = numbers.view(long, 2, 3, high // 2, 2, 4, wide // 2, 2, 4)
            cut = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
            patches.append(cut.reshape(long * high * wide, -1))
            grids.append([long, high, wide])
        made["pixel_values_videos"] = torch.cat(patches)
        made["video_grid_thw"] = torch.tensor(grids)
        if family == "qwen2_5_vl":
            made["second_per_grid_ts"] = torch.tensor([2 / RATE] * len(videos))
    if made:
        kinds = {FIRST_ADDED: 1, FIRST_ADDED + 3: 2}
        made["mm_token_type_ids"] = torch.tensor([[kinds.get(i, 0) for i in ids]])
    return made


@pytest.fixture(scope="module")
def expected(family: str, model: TinyModel) -> list[Written]:
    with model.llm() as llm:
        outputs = llm.generate(prompts(), SamplingParams(max_tokens=1), use_tqdm=False)
    found = []
    for output, (_, videos, images) in zip(outputs, asked(), strict=True):
        ids = list(output.prompt_token_ids or [])
        found.append(model.written(ids, COUNT, **inputs_of(videos, images, ids, family)))
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


@pytest.fixture(scope="module")
def stamping(tmp_path_factory: Any) -> TinyModel:
    return saved("qwen3_vl", tmp_path_factory.mktemp("stamping"))


@pytest.fixture(scope="module")
def llm(stamping: TinyModel) -> Any:
    with stamping.llm(allowed_local_media_path=str(stamping.path)) as made:
        yield made


def ask(video: Any) -> dict[str, Any]:
    return {"prompt": f"Look {VIDEO}", "multi_modal_data": {"video": video}}


def test_frames_in_every_form_are_one_video(llm: LLM) -> None:
    frames = clip(4)
    array = np.stack([np.asarray(frame) for frame in frames])
    about = {"fps": RATE}
    forms: list[Any] = [
        (frames, about),
        (array, about),
        (list(array), about),
        (array.transpose(0, 3, 1, 2), about),
        [(frames, about)],
        (frames, {"fps": RATE, "frames_indices": [0, 1, 2, 3], "total_num_frames": 9}),
    ]
    outputs = llm.generate([ask(form) for form in forms], SHORT, use_tqdm=False)
    assert len({tuple(output.prompt_token_ids or ()) for output in outputs}) == 1
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    text = llm.get_tokenizer().decode(outputs[0].prompt_token_ids or [])
    assert "<0.1 seconds><|vision_start|><|video_pad|>" in text and "<0.5 seconds>" in text
    chat = [{"role": "user", "content": [{"type": "video", "video": (frames, about)}]}]
    plain = "{% for m in messages %}Look {{ m['content'] }}{% endfor %}"
    [said] = llm.chat([chat], SHORT, chat_template=plain, use_tqdm=False)
    assert said.prompt_token_ids == outputs[0].prompt_token_ids


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (clip(4), "no times"),
        ((clip(4), {"fps": 0}), "has the fps 0"),
        ((clip(4), {"fps": 2.0, "frames_indices": [0, 1]}), "2 frames_indices for 4"),
        ((clip(2), {"fps": 2.0, "frames_indices": 5}), "are a list of whole numbers"),
        ((clip(2), {"fps": 2.0, "frames_indices": ["a", 1]}), "'a' in its frames_indices"),
        ((clip(2), {"fps": 2.0, "total_num_frames": "many"}), "'many' in its total_num_frames"),
        (([], {"fps": 2.0}), "has 0 frames"),
        (([picture(9, 9), picture(8, 9)], {"fps": 2.0}), "different sizes"),
        ((["a"], {"fps": 2.0}), "a frame that is a str"),
        ("a.mp4", "is a str"),
        (np.zeros((4, 24, 32), np.uint8), "is a ndarray"),
        ((np.zeros((4, 24, 32, 3), np.float32), {"fps": 2.0}), "array of float32"),
    ],
)
def test_what_is_no_video_costs_its_own_row(llm: LLM, given: Any, said: str) -> None:
    good = ask((clip(2), {"fps": RATE}))
    bad, fine = llm.generate([ask(given), good], SHORT, on_error="return", use_tqdm=False)
    assert fine.error is None
    assert isinstance(bad.error, InvalidPrompt) and said in str(bad.error)


def mp4(frames: int, rate: int = 10) -> bytes:
    av: Any = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            shade = np.full((48, 64, 3), number * 255 // frames, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()


def test_files_are_decoded_frame_by_frame(
    llm: LLM, stamping: TinyModel, children: MediaChildren
) -> None:
    data = mp4(40)
    found = FileVideo.of(data, children)
    assert found.shape == VideoShape(40, 64, 48, 10.0, None, 40, sampled=False)
    shades = [np.asarray(frame).mean() for frame in found.frames([0, 20, 39])]
    assert shades == pytest.approx([0, 127, 249], abs=12)
    (stamping.path / "a.mp4").write_bytes(data)
    forms: list[Any] = [data, stamping.path / "a.mp4"]
    outputs = llm.generate([ask(form) for form in forms], SHORT, use_tqdm=False)
    assert len({tuple(output.prompt_token_ids or ()) for output in outputs}) == 1
    bad = [
        *(b"", b"no video", data[:300], data[: len(data) // 2]),
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
    ]
    for output in llm.generate([ask(one) for one in bad], SHORT, on_error="return", use_tqdm=False):
        assert isinstance(output.error, InvalidPrompt) and "video" in str(output.error)


def gif(frames: int, width: int, height: int) -> bytes:
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff"
    frame = b"!\xf9\4\0\1\0\0\0," + struct.pack("<HHHH", 0, 0, width, height)
    return head + (frame + b"\0\2\2\x44\1\0") * frames + b";"


def crafted() -> dict[str, bytes]:
    whole, begins = mp4(40), b"\0\0\0\x18ftypmp42" + bytes(12)
    nested = b"".join(struct.pack(">I", 8 * (5000 - i)) + b"moov" for i in range(5000))
    packed = zlib.compress(bytes(20 << 20), 9)
    moov = b"cmov\0\0\0\x0cdcomzlib" + struct.pack(">I", 12 + len(packed))
    moov += b"cmvd\x7f\xff\xff\xf0" + packed

    def table(box: bytes, *numbers: int) -> bytes:
        return changed(whole, whole.index(box) + 8, struct.pack(f">{len(numbers)}I", *numbers))

    return {
        "a million frames": gif(1_000_000, 1, 1),
        "65,535 pixels a side": gif(2, 65_535, 65_535),
        "no pixels": gif(3, 0, 0),
        "a million samples": table(b"stsz", 1, 1_000_000),
        "4 billion samples": table(b"stsz", 1, 0xFFFFFFFF),
        "fewer samples than times": table(b"stsz", 0, 3),
        "times of 2^32": table(b"stts", 1, 40, 0xFFFFFFFF),
        "2^31 times": table(b"stts", 1, 0x7FFFFFFF, 1),
        "seconds of no parts": changed(whole, whole.index(b"mdhd") + 16, bytes(4)),
        "boxes in boxes": begins + nested,
        "a bomb for a header": begins + struct.pack(">II", len(moov) + 12, 0)[:4] + b"moov" + moov,
        "an index without end": begins + (b"\0\0\0\x20sidx" + bytes(24)) * 10_000,
        "a gap of 2^63": begins + b"\0\0\0\1free\x7f" + b"\xff" * 7 + whole,
        "noise": noisy(whole, 600, 200),
        "padding": (b"\x47\x1f\xff\x10" + b"\xff" * 184) * 10_000,
        "start codes": b"\0\0\1\xba" * 20_000,
        "tags of nothing": b"FLV\1\5\0\0\0\x09" + b"\0\0\0\0\x09\xff\xff\xff" * 1000,
        "an archive": b"PK\3\4" + bytes(26) + whole,
    }


def test_videos_that_lie_cost_their_own_rows(llm: LLM) -> None:
    bad, good = crafted(), mp4(2)
    prompts = [ask(data) for each in bad.values() for data in (each, good)]
    begun = time.monotonic()
    outputs = llm.generate(prompts, SHORT, on_error="return", use_tqdm=False)
    for name, output in zip(bad, outputs[::2], strict=True):
        assert isinstance(output.error, InvalidPrompt) and "the video" in str(output.error), name
    assert all(output.error is None for output in outputs[1::2])
    assert time.monotonic() - begun < 60


def test_one_frame_is_enough(llm: LLM) -> None:
    given: list[Any] = [mp4(1), (clip(1), {"fps": RATE})]
    for output in llm.generate([ask(one) for one in given], SHORT, use_tqdm=False):
        assert len(output.outputs[0].token_ids) == 3


def test_frames_that_would_be_decoded_are_counted_first(
    monkeypatch: pytest.MonkeyPatch, children: MediaChildren
) -> None:
    monkeypatch.setattr(reading, "MOST_DECODED", 40 * 64 * 48 - 1)
    with pytest.raises(InvalidPrompt, match="40 frames of 64 x 48; at most 122,879 pixels"):
        FileVideo.of(mp4(40), children)


def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, children: MediaChildren
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(NotSupported, match=r"av: pip install 'quire-llm\[video\]'"):
        FileVideo.of(b"some", children)


def test_frames_of_a_file_are_chosen_as_transformers_does() -> None:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    normalised = Normalised.of(Fields({}, "x"), CLIP_MEAN, CLIP_STD)
    images = ShapedImages(
        pad="<p>", patch=4, merge=2, least=64, most=1 << 20, resample=3, normalised=normalised
    )
    for stamped in (False, True):
        rules = ShapedVideos(images, 2, 2.0, 4, 16, None, stamped)
        for frames, rate in ((40, 10.0), (100, 25.0), (3, 30.0), (900, 24.0), (7, 1.5)):
            chosen = rules.chosen(VideoShape(frames, 32, 24, rate, sampled=False))
            if stamped:
                said = SimpleNamespace(fps=2, min_frames=4, max_frames=16)
                about = SimpleNamespace(total_num_frames=frames, fps=rate)
                wanted = Qwen3VLVideoProcessor.sample_frames(said, about).tolist()
            else:  # the other's module needs torchvision; this is what it computes
                most = min(16, frames) // 2 * 2
                count = int(min(max(frames / rate * 2, 4), most) // 2 * 2)
                wanted = torch.arange(0, frames, frames / count).int().tolist()
            assert chosen == wanted


def test_text_goes_on_after_the_largest_coordinate() -> None:
    item: Any = MediaItem(1, "video", 4, None, (4, 1, 1), 2.5)  # type: ignore[arg-type]
    made, delta = coordinates_of(7, [Span(item, np.array([1, 2, 3, 4], np.int32))])
    assert made.tolist() == [[0, 1, 3, 6, 8, 9, 10], [0, 1, 1, 1, 1, 9, 10], [0, 1, 1, 1, 1, 9, 10]]
    assert delta == 4
    apart = Span(item, np.array([1, 3, 4, 5], np.int32))
    assert coordinates_of(7, [apart])[0][0].tolist() == [0, 1, 2, 3, 5, 8, 9]
