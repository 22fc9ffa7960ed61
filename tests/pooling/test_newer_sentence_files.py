"""What newer sentence-transformers directories say: several poolings, messages, logits, lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from quire.errors import InvalidPrompt, NotSupported, PromptTooLong, QuireError, UnsupportedModel
from tests.pooling.tiny import (
    DECODERS,
    ENCODERS,
    hidden_of,
    open_llm,
    similarity,
    write_model,
    write_sentence_files,
)

TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}yes"


def change(path: Path, **values: Any) -> None:
    """Lay values over what a JSON file says."""
    said = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**said, **values}))


@pytest.mark.parametrize(
    "said",
    [
        {"pooling_mode": ["cls", "max", "mean", "weightedmean"]},
        {  # the order of the file is not that of the vector
            "pooling_mode_weightedmean_tokens": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": True,
            "pooling_mode_cls_token": True,
            "pooling_mode_lasttoken": False,
        },
    ],
)
def test_several_poolings_lie_end_to_end(said: dict[str, Any], tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    weight = write_sentence_files(tmp_path, "cls_token", dense=20, hidden=4 * 48)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(said))
    assert weight is not None
    with open_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("embed",)
        [output] = llm.embed("w1 w2 w3", use_tqdm=False)
    x = hidden_of(model, output.prompt_token_ids)
    places = torch.arange(1, len(x) + 1)[:, None]
    weighted = (places * x).sum(0) / places.sum()
    pooled = torch.cat([x[0], x.amax(0), x.mean(0), weighted])
    expected = torch.tanh(weight[:, :-1] @ pooled + weight[:, -1])
    assert similarity(output.outputs.embedding, expected) > 0.99999


def test_texts_that_are_messages(tmp_path: Path) -> None:
    model = write_model(tmp_path, DECODERS["qwen3"])
    write_sentence_files(tmp_path, "lasttoken")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    change(tmp_path / "sentence_bert_config.json", modality_config={"text": {}, "message": {}})
    change(tmp_path / "config_sentence_transformers.json", prompts={"query": "w9"})
    with open_llm(tmp_path) as llm:
        [plain] = llm.embed("w1 w2", use_tqdm=False)
        [asked] = llm.embed("w1", prompt_name="query", use_tqdm=False)
        with pytest.raises(NotSupported, match="messages of a chat"):
            llm.embed("w1", truncate_prompt_tokens=-1)
    # user w1 w2 yes; system w9 user w1 yes; nothing around them but what the template writes.
    assert plain.prompt_token_ids == [3, 7, 8, 4]
    assert asked.prompt_token_ids == [3, 15, 3, 7, 4]
    expected = hidden_of(model, plain.prompt_token_ids)[-1]
    assert similarity(plain.outputs.embedding, expected) > 0.99999


@pytest.mark.parametrize("no", [5, None])
def test_pairs_that_are_scored_by_logits(no: int | None, tmp_path: Path) -> None:
    model = write_model(tmp_path, DECODERS["qwen3"], "generator")
    modules = [{"type": "a.Transformer"}, {"type": "a.LogitScore", "path": "1_LogitScore"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    change(tmp_path / "1_LogitScore" / "config.json", true_token_id=4, false_token_id=no)
    identity = "torch.nn.modules.linear.Identity"
    usual = {"activation_fn": identity, "prompts": {"a": "w9 "}, "default_prompt_name": "a"}
    change(tmp_path / "config_sentence_transformers.json", **usual)
    with open_llm(tmp_path) as llm:
        [score] = llm.score("w1", "w2 w3", use_tqdm=False)
    assert score.prompt_token_ids == [0, 15, 7, 2, 8, 9, 2]
    with torch.no_grad():
        logits = model(torch.tensor([score.prompt_token_ids])).logits[0, -1]
    expected = float(logits[4] - (0 if no is None else logits[no]))
    assert score.outputs.score == pytest.approx(expected, abs=2e-5)
    with open_llm(tmp_path, runner="generate") as llm:
        assert llm.supported_tasks == ("generate",)
    with pytest.raises(UnsupportedModel, match="final_logit_softcapping"):
        open_llm(tmp_path, hf_overrides={"final_logit_softcapping": 30.0})


def test_a_cross_encoder_by_the_files_beside_it(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"], "classes", num_labels=1)
    (tmp_path / "modules.json").write_text('[{"type": "a.Transformer", "path": ""}]')
    identity = "torch.nn.modules.linear.Identity"
    change(tmp_path / "config_sentence_transformers.json", activation_fn=identity)
    names = ["input_ids", "attention_mask"]
    change(tmp_path / "tokenizer_config.json", model_max_length=8, model_input_names=names)
    with open_llm(tmp_path) as llm:
        [score] = llm.score("w1 w2", "w3", use_tqdm=False)
        with pytest.raises(PromptTooLong, match="takes 8"):
            llm.score("w1 w2", "w3 w4 w5 w6")
        [cut] = llm.score("w1 w2", "w3 w4 w5 w6", truncate_prompt_tokens=-1, use_tqdm=False)
    assert len(cut.prompt_token_ids) == 8
    with torch.no_grad():  # without types, since the tokenizer gives models none
        expected = model(torch.tensor([score.prompt_token_ids])).logits
    assert score.outputs.score == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("kind", ["TokenizersBackend", "BertTokenizer"])
def test_which_of_two_texts_a_token_is_of_is_told_as_transformers_does(
    kind: str, tmp_path: Path
) -> None:
    """A class of any vocabulary tells it where model_input_names says so alone."""
    model = write_model(tmp_path, ENCODERS["bert"], "classes", num_labels=1)
    change(tmp_path / "tokenizer_config.json", tokenizer_class=kind)
    with open_llm(tmp_path) as llm:
        [score] = llm.score("w1 w2", "w3", use_tqdm=False)
    told = "token_type_ids" in AutoTokenizer.from_pretrained(tmp_path).model_input_names
    assert told is (kind == "BertTokenizer")
    types = torch.tensor([[0, 0, 0, 0, int(told), int(told)]])  # <s> w1 w2 </s> w3 </s>
    with torch.no_grad():
        ids = torch.tensor([score.prompt_token_ids])
        expected = model(ids, token_type_ids=types).logits.sigmoid()
    assert score.outputs.score == pytest.approx(float(expected), abs=1e-5)


def test_a_dense_layer_that_is_pickled_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "cls_token", dense=24)
    (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"2_Dense/model.safetensors is not there"):
        open_llm(tmp_path)


def test_heads_that_are_pickled_beside_a_model_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    (tmp_path / "colbert_linear.pt").write_bytes(b"PK")
    with caplog.at_level("INFO", "quire"), open_llm(tmp_path):
        assert "colbert_linear.pt is a pickle and not read" in caplog.text
    assert "sparse_linear.pt" not in caplog.text


def test_an_empty_text_is_what_the_tokenizer_puts_around_it(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path) as llm:
        [output] = llm.embed([""], use_tqdm=False)
        bare = {"add_special_tokens": False}
        with pytest.raises(InvalidPrompt, match="no tokens at all"):
            llm.embed([""], tokenization_kwargs=bare)
    assert output.prompt_token_ids == [0, 2]
    expected = hidden_of(model, output.prompt_token_ids)[0]
    assert similarity(output.outputs.embedding, expected) > 0.99999


def test_embeddings_that_a_directory_cuts(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "mean_tokens")
    change(tmp_path / "config_sentence_transformers.json", truncate_dim=16)
    with open_llm(tmp_path) as llm:
        [output] = llm.embed("w1 w2", use_tqdm=False)
    expected = hidden_of(model, output.prompt_token_ids).mean(0)[:16]
    assert similarity(output.outputs.embedding, expected) > 0.99999
    assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1, abs=1e-5)


MESSAGE: Mapping[str, Any] = {"modality_config": {"message": {}}}


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("sentence_bert_config.json", {"query_expansion": {"a": 1}}, "query_expansion"),
        ("sentence_bert_config.json", {"document_length": 180}, "document_length"),
        (
            "sentence_bert_config.json",
            {**MESSAGE, "processing_kwargs": {"text": {"max_length": 9}}},
            "text",
        ),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "median"]}, "median"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "no kind of pooling"),
        ("1_Pooling/config.json", {"pooling_mode": [3]}, "'3'"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim"),
    ],
)
def test_what_is_not_built_is_refused(
    name: str, said: dict[str, Any], why: str, tmp_path: Path
) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "cls_token")
    change(tmp_path / name, **said)
    with pytest.raises(QuireError, match=why):
        open_llm(tmp_path)


def test_a_model_in_a_folder_of_an_old_directory(tmp_path: Path) -> None:
    """Its config, weights, tokenizer and longest text are there; the rest lies around it."""
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    model = write_model(inner, ENCODERS["bert"])
    weight = write_sentence_files(tmp_path, "mean_tokens", dense=20)
    change(inner / "sentence_distilbert_config.json", max_seq_length=6)
    change(tmp_path / "config_sentence_transformers.json", prompts={"a": "w9 "})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "config.json").write_text('{"architectures": ["T5EncoderModel"]}')  # not read
    with open_llm(tmp_path) as llm:
        [output] = llm.embed("w1 w2", prompt_name="a", use_tqdm=False)
        assert output.prompt_token_ids == llm.get_tokenizer().encode("w9 w1 w2")
        with pytest.raises(PromptTooLong, match="takes 6"):
            llm.embed("w1 w2 w3 w4 w5")
    assert weight is not None
    pooled = hidden_of(model, output.prompt_token_ids).mean(0)
    expected = torch.tanh(weight[:, :-1] @ pooled + weight[:, -1])
    assert similarity(output.outputs.embedding, expected) > 0.99999


@pytest.mark.parametrize(
    ("path", "why"), [("0_T", r"0_T/config.json: named by the model"), ("../a", "refused")]
)
def test_a_model_in_a_folder_that_is_not_there(path: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Transformer", "path": path}]))
    with pytest.raises(QuireError, match=why):
        open_llm(tmp_path)
