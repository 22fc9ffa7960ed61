"""Images among the parts of a chat: where they stand, from where they come, and what stays text."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from tests.media.families import SEEING
from tests.media.tiny import FIRST_ADDED, TinyModel, picture, save_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|>"
    "<|vision_end|>{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}[assistant]"
)
TEXT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
IMAGE = picture(40, 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    family = SEEING["qwen3_vl"]
    path = tmp_path_factory.mktemp("chat")
    IMAGE.save(path / "one.png")
    return save_tiny(path, family.make(), family.added, family.processor)


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm(allowed_local_media_path=str(model.path)) as made:
        yield made


def encoded(image: Image.Image = IMAGE) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ask(llm: LLM, *parts: Any, template: str = PARTS, **options: Any) -> Any:
    messages = [{"role": "user", "content": list(parts)}]
    return llm.chat(messages, GREEDY, chat_template=template, use_tqdm=False, **options)[0]


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_messages_may_be_objects_of_pydantic(llm: LLM) -> None:
    """Whole messages, their parts, and what a part holds."""
    pydantic = pytest.importorskip("pydantic")
    url = pydantic.create_model("Url", url=(str, ...))
    image = pydantic.create_model(
        "Image", type=(str, "image_url"), image_url=(url, ...), detail=(str | None, None)
    )
    text = pydantic.create_model("Text", type=(str, "text"), text=(str, ...))
    message = pydantic.create_model("Message", role=(str, "user"), content=(Any, ...))
    parts = [text(text="What is "), image(image_url=url(url=encoded())), text(text=" this?")]
    plain = ask(llm, *(part.model_dump(exclude_none=True) for part in parts))
    mixed = ask(llm, *parts)
    given = [message(content=parts)]
    [whole] = llm.chat(given, GREEDY, chat_template=PARTS, use_tqdm=False)
    assert FIRST_ADDED in plain.prompt_token_ids
    assert plain.prompt_token_ids == mixed.prompt_token_ids == whole.prompt_token_ids
    assert plain.outputs[0].token_ids == mixed.outputs[0].token_ids == whole.outputs[0].token_ids


def test_every_way_to_pass_an_image_is_the_same_prompt(llm: LLM, model: TinyModel) -> None:
    given: list[Any] = [
        {"type": "image_url", "image_url": {"url": encoded()}},
        {"type": "image_url", "image_url": encoded()},
        {"image_url": {"url": encoded()}},
        {"type": "input_image", "image_url": encoded()},
        {"type": "image_url", "image_url": {"url": f"file://{model.path}/one.png"}},
        {"type": "image", "url": encoded()},
        {"type": "image", "base64": encoded().partition(",")[2]},
        {"type": "image_pil", "image_pil": IMAGE},
        {"type": "image", "image": IMAGE},
    ]
    outputs = [ask(llm, words("What is "), part, words(" this?")) for part in given]
    assert len({tuple(output.prompt_token_ids) for output in outputs}) == 1
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    whole = llm.generate(
        {
            "prompt": "[user]What is <|vision_start|><|image_pad|><|vision_end|> this?[assistant]",
            "multi_modal_data": {"image": IMAGE},
        },
        GREEDY,
        use_tqdm=False,
    )[0]
    assert whole.prompt_token_ids == outputs[0].prompt_token_ids


def test_a_template_of_text_has_images_first(llm: LLM, model: TinyModel) -> None:
    image = {"type": "image_url", "image_url": {"url": encoded()}}
    here = "<|vision_start|><|image_pad|><|vision_end|>"
    output = ask(llm, words("before"), image, words("after"), template=TEXT)
    assert output.prompt == f"[user]{here}\nbefore\nafter[assistant]"
    with model.llm(interleave_mm_strings=True) as other:
        output = ask(other, words("before"), image, words("after"), template=TEXT)
    assert output.prompt == f"[user]before\n{here}\nafter[assistant]"


@pytest.mark.parametrize("template", [PARTS, TEXT])
def test_a_placeholder_that_a_message_quotes_stays_text(llm: LLM, template: str) -> None:
    quoted = words("the token <|image_pad|> is text")
    image = {"type": "image_url", "image_url": {"url": encoded()}}
    output = ask(llm, quoted, image, template=template)
    assert output.prompt_token_ids.count(FIRST_ADDED) == 3 * 5
    assert ask(llm, quoted, template=template).prompt_token_ids.count(FIRST_ADDED) == 0


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (at("http://a.example/x.png"), InvalidPrompt, "allowed_media_domains"),
        (at("file:///etc/passwd"), InvalidPrompt, "outside"),
        (at("file://host/etc/passwd"), InvalidPrompt, "another machine"),
        (at("/etc/passwd"), InvalidPrompt, "neither"),
        (at("data:image/png,abc"), InvalidPrompt, "base64"),
        (at("data:image/png;base64,!!"), InvalidPrompt, "base64"),
        ({"type": "image_url", "image_url": {}}, InvalidPrompt, "no image"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, NotSupported, "input_audio"),
        ({"type": "audio_url", "audio_url": {"url": "data:,"}}, NotSupported, "images and videos"),
        ({"type": "file", "file": {"file_id": "f"}}, NotSupported, "images and videos alone. Show"),
        ({"type": "input_file", "file_id": "f"}, NotSupported, "images and videos alone. Show"),
        ({"type": "video_url", "video_url": {"url": "data:,"}}, InvalidPrompt, "base64"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_a_chat_may_not_hold(llm: LLM, part: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        ask(llm, words("look"), part)


def test_a_link_does_not_lead_out_of_the_folder(llm: LLM, model: TinyModel, tmp_path: Path) -> None:
    IMAGE.save(tmp_path / "two.png")
    link = model.path / "link.png"
    link.symlink_to(tmp_path / "two.png")
    with pytest.raises(InvalidPrompt, match="outside"):
        ask(llm, {"type": "image_url", "image_url": {"url": f"file://{link}"}})


def test_a_name_means_one_content(llm: LLM) -> None:
    def named(image: Image.Image) -> dict[str, Any]:
        return {"type": "image_pil", "image_pil": image, "uuid": "mine"}

    first = ask(llm, named(IMAGE)).prompt_token_ids
    assert ask(llm, named(IMAGE)).prompt_token_ids == first
    with pytest.raises(InvalidPrompt, match="two different images"):
        ask(llm, named(picture(40, 24, 9)))


def test_options_of_the_processor_change_sizes(llm: LLM) -> None:
    image = {"type": "image_pil", "image_pil": picture(100, 100)}
    plain = ask(llm, image).prompt_token_ids.count(FIRST_ADDED)
    small = ask(llm, image, mm_processor_kwargs={"max_pixels": 400}).prompt_token_ids
    assert small.count(FIRST_ADDED) < plain
    for bad in ({"max_pixels": "many"}, {"colour": 1}):
        with pytest.raises(InvalidPrompt, match="mm_processor_kwargs"):
            ask(llm, image, mm_processor_kwargs=bad)


def test_a_host_must_be_public(model: TinyModel) -> None:
    with (
        model.llm(allowed_media_domains=["localhost:1"]) as llm,
        pytest.raises(InvalidPrompt, match="not a public address"),
    ):
        ask(llm, {"type": "image_url", "image_url": {"url": "http://localhost:1/x.png"}})
