"""Classes of Transformers that see and are no family of quire's: greedy tokens as Transformers
writes them, or refused as they are loaded, by what is in the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch

from quire import LLM
from quire.errors import InvalidPrompt, UnsupportedModel
from quire.models.towers.foreign import ForeignImages
from tests.media.seeing import CLIP
from tests.media.test_families import COUNT, GREEDY, check
from tests.media.tiny import FIRST_ADDED, TEXT, TinyModel, picture, save_tiny

HERE = "<image>"
SIGLIP = {"model_type": "siglip_vision_model", **CLIP, "vision_use_head": False}
SQUARE = {"size": {"height": 56, "width": 56}}


def saved(path: Path, module: Any, added: list[str], processor: dict[str, Any]) -> TinyModel:
    """With the files that a processor is made of."""
    made = save_tiny(path, module, added, processor)
    (path / "processor_config.json").write_text(json.dumps(processor.pop("processor", {})))
    about = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    about["tokenizer_class"] = "PreTrainedTokenizerFast"  # as its file has it
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return made


def vip_llava(path: Path) -> TinyModel:
    """Rows of several layers of its tower, beside each other."""
    from transformers import LlamaConfig, VipLlavaConfig, VipLlavaForConditionalGeneration

    # The name that files have; the class itself has another one since Transformers 5.23.
    layers: dict[str, Any] = {"vision_feature_layers": [-2, -1]}
    config = VipLlavaConfig(
        vision_config={"model_type": "clip_vision_model", **CLIP},
        text_config=LlamaConfig(**TEXT).to_dict(),
        image_token_index=FIRST_ADDED,
        **layers,
    )
    about = {
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
        "image_token": HERE,
    }
    squares = {"size": {"shortest_edge": 56}, "crop_size": SQUARE["size"], "processor": about}
    processor = {"image_processor_type": "CLIPImageProcessor", **squares}
    return saved(path, VipLlavaForConditionalGeneration(config), [HERE], processor)


def aya_vision(path: Path) -> TinyModel:
    """Tiles with words between them, over a text with windows; the class leaves out the factor that
    its text's logits have, which is 1 here."""
    from transformers import AyaVisionConfig, AyaVisionForConditionalGeneration, Cohere2Config

    config = AyaVisionConfig(
        vision_config=SIGLIP,
        text_config=Cohere2Config(**TEXT, sliding_window=16, logit_scale=1.0).to_dict(),
        image_token_index=FIRST_ADDED,
        downsample_factor=2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    about = {
        "processor_class": "AyaVisionProcessor",
        "patch_size": 14,
        "img_size": 56,
        "downsample_factor": 2,
        "image_token": HERE,
    }
    tiles = {**SQUARE, "crop_to_patches": True, "max_patches": 4, "processor": about}
    processor = {"image_processor_type": "GotOcr2ImageProcessor", **tiles}
    added = ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE", "TILE_GLOBAL", HERE]
    return saved(path, AyaVisionForConditionalGeneration(config), added, processor)


def paligemma(path: Path) -> TinyModel:
    """Its processor writes around the prompt, whose tokens see each other."""
    from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaForConditionalGeneration

    config = PaliGemmaConfig(
        vision_config={**SIGLIP, "projection_dim": 32},
        text_config=GemmaConfig(**TEXT, head_dim=8).to_dict(),
        image_token_index=FIRST_ADDED,
        projection_dim=32,
    )
    about = {"processor_class": "PaliGemmaProcessor"}
    processor = {"image_processor_type": "SiglipImageProcessor", "image_seq_length": 16, **SQUARE}
    module = PaliGemmaForConditionalGeneration(config)
    made = saved(path, module, [HERE], {**processor, "processor": about})
    said = json.loads((path / "config.json").read_text())
    said["text_config"]["use_bidirectional_attention"] = False
    (path / "config.json").write_text(json.dumps(said))
    return made


def asked() -> list[tuple[str, list[Any]]]:
    return [
        (f"Look {HERE} what is it?", [picture(90, 70)]),
        (f"{HERE}{HERE} and then {HERE}.", [picture(60, 120), picture(56, 56), picture(31, 200)]),
        ("Nothing to see here.", []),
        (f"Again {HERE}", [picture(60, 120)]),
    ]


@pytest.mark.parametrize("make", [vip_llava, aya_vision], ids=["VipLlava", "AyaVision"])
def test_greedy_tokens_are_those_of_transformers(
    make: Callable[[Path], TinyModel], tmp_path: Path
) -> None:
    from transformers import AutoProcessor

    model = make(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path)
    expected, ids = [], []
    for text, images in asked():
        how = {"return_tensors": "pt", "add_special_tokens": False, "padding": False}
        made = processor(images=images or None, text=[text], **how)
        ids.append(made.pop("input_ids")[0].tolist())
        made.pop("attention_mask")
        expected.append(model.written(ids[-1], COUNT, **made))
    prompts: Any = [
        {"prompt": text, "multi_modal_data": {"image": images}} for text, images in asked()
    ]
    with model.llm(max_num_batched_tokens=24, max_num_seqs=3) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == ids
        check(llm, prompts, expected)
        chat = [{"role": "user", "content": [{"type": "image", "image": picture(90, 70)}]}]
        plain = "{% for m in messages %}Look {{ m['content'] }} what is it?{% endfor %}"
        [said] = llm.chat([chat], GREEDY, chat_template=plain, use_tqdm=False)
        assert said.outputs[0].token_ids == outputs[0].outputs[0].token_ids
        check_bad(llm)


def check_bad(llm: LLM) -> None:
    """What is no image, or has no place, costs its own row."""
    bad: list[Any] = [
        {"prompt": HERE, "multi_modal_data": {"image": b"no image"}},
        {"prompt": "no place", "multi_modal_data": {"image": picture(9, 9)}},
        {"prompt": "text"},
    ]
    first, second, fine = llm.generate(bad, GREEDY, on_error="return", use_tqdm=False)
    assert isinstance(first.error, InvalidPrompt) and isinstance(second.error, InvalidPrompt)
    assert fine.error is None


def test_a_request_is_made_without_the_processor_when_its_image_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server looks on other threads; the one that makes requests is the engine's, where the
    processor would hold up everyone: of a large image for seconds."""
    picture(90, 70).save(encoded := BytesIO(), "PNG")
    prompt = {"prompt": HERE, "multi_modal_data": {"image": encoded.getvalue()}}
    asked_on = list[str]()
    with vip_llava(tmp_path).llm() as llm:
        processed = ForeignImages.processed

        def noted(self: ForeignImages, *given: Any) -> Any:
            asked_on.append(current_thread().name)
            return processed(self, *given)

        monkeypatch.setattr(ForeignImages, "processed", noted)
        assert llm._session.intake.look(prompt) is None and len(asked_on) == 1
        [output] = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids
    assert len(asked_on) == 2 and asked_on[1].startswith("quire-media")


def test_a_prompt_that_is_written_around_is_refused(tmp_path: Path) -> None:
    model = paligemma(tmp_path)
    wanted = r"PaliGemmaFor.*\(vision_config\).*language_model_only=True"
    with pytest.raises(UnsupportedModel, match=wanted):
        model.llm()
    with model.llm(language_model_only=True) as llm:
        assert llm.generate("text", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_what_is_more_than_rows_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import VipLlavaModel

    theirs = VipLlavaModel.forward

    def with_positions(self: Any, **given: Any) -> Any:
        given["position_ids"] = 2 * torch.arange(given["input_ids"].shape[1])[None]
        return theirs(self, **given)

    monkeypatch.setattr(VipLlavaModel, "forward", with_positions)
    with pytest.raises(UnsupportedModel, match="by positions of its own, both ways"):
        vip_llava(tmp_path).llm()


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    model = vip_llava(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"VipLlava.*cannot make its processor"):
        model.llm()
    said = json.loads((tmp_path / "config.json").read_text())
    said["architectures"] = ["UnheardOfForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(UnsupportedModel, match=r"no UnheardOfModel.get_image_features"):
        model.llm()
