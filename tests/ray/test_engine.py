"""What an actor of a pipeline makes of a batch, without a cluster around it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quire.errors import InvalidOption, QuireWarning
from quire.ray.answer_files import AnswerFiles, read_answers, write_answers
from quire.ray.answers import NOTHING
from quire.ray.config import DATA, ERROR, Packed, Row, vLLMEngineProcessorConfig
from quire.ray.engine import EngineUDF
from quire.ray.processor import _packed, _unpacked
from tests.pooling.tiny import ENCODERS, open_llm, texts, write_model, write_sentence_files
from tests.tiny_llm import CONFIG
from tests.weights.tiny import tiny_model

CHAT = [{"role": "user", "content": "How are you?"}]


def answers(engine: EngineUDF, rows: list[Row]) -> list[Row]:
    async def run() -> list[Row]:
        packed = np.empty(len(rows), object)
        packed[:] = [Packed(row) for row in rows]
        return [one.row async for batch in engine({DATA: packed}) for one in batch[DATA]]

    return asyncio.run(run())


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps(CONFIG))
    kwargs = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32", "device": "cpu"}
    engine_kwargs = {**kwargs, "kv_cache_memory_bytes": 8 << 20, "pipeline_parallel_size": 1}
    return {"model_source": str(model), "engine_kwargs": engine_kwargs}


RENDERING: Row = {"chat_template": None}
GREEDY = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


def test_rows_as_pipelines_write_them(options: dict[str, Any], tmp_path: Path) -> None:
    kept = {"journal": str(tmp_path / "journal"), "id_column": "id"}
    engine = EngineUDF(vLLMEngineProcessorConfig(**options, **kept), None)
    choice = {"choice": np.array(["b", "c"]), "regex": None}
    asked: list[Row] = [
        {"messages": np.array(CHAT), "sampling_params": {**GREEDY, "detokenize": False}},
        {"messages": CHAT, "sampling_params": {**GREEDY, "stop": np.array(["#"]), "seed": None}},
        {"prompt": "one", "sampling_params": {**GREEDY, "logprobs": 1, "max_tokens": np.int64(3)}},
        {"prompt": "x", "sampling_params": {**GREEDY, "structured_outputs": choice}},
        {"prompt": "x", "sampling_params": {"max_token": 3}},
        {"messages": [], "sampling_params": GREEDY},
        {"words": "nothing that is asked"},
    ]
    rows = [{"id": number, **row} for number, row in enumerate(asked)]
    found = answers(engine, rows)
    assert [row["id"] for row in found] == list(range(len(rows)))
    assert found[0]["generated_text"] and found[0]["generated_text"] == found[1]["generated_text"]
    assert found[0]["num_input_tokens"] > 10  # the chat template's
    [first, *_] = found[2]["generated_tokens"]
    assert found[2]["num_generated_tokens"] == 3 and first in found[2]["logprobs"][0]
    assert found[3]["generated_text"] in ("b", "c")
    assert [bool(row[ERROR]) for row in found] == [False] * 4 + [True] * 3
    assert "max_token" in found[4][ERROR] and "this one has id, words" in found[6][ERROR]
    again = answers(engine, rows)
    assert str(again) == str(found)  # with the same times: read, not computed
    [kept_file] = (tmp_path / "journal").iterdir()
    kept_file.write_bytes(kept_file.read_bytes()[:1000])
    with pytest.warns(QuireWarning, match="computed again"):
        assert answers(engine, rows)[0]["generated_tokens"] == found[0]["generated_tokens"]
    assert str(answers(engine, rows)) != str(found)  # computed, and kept again
    asked_otherwise = [{**rows[0], "sampling_params": {**GREEDY, "max_tokens": 2}}, *rows[1:]]
    assert answers(engine, asked_otherwise)[0]["num_generated_tokens"] == 2


def test_a_journal_without_room_costs_no_answer(tmp_path: Path) -> None:
    """The disk is full from the first byte, or a folder is in the file's place."""
    kept, made = tmp_path / "kept.json", [{**NOTHING, "embeddings": np.ones(2, np.float32)}]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.warns(QuireWarning, match="of 1 rows are given but not kept.*too large"):
            write_answers(kept, made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [] and read_answers(kept, 1) is None
    write_answers(kept, made)
    assert str(read_answers(kept, 1)) == str(made)
    kept.unlink()
    kept.mkdir()
    with pytest.warns(QuireWarning, match="Is a directory"):
        assert read_answers(kept, 1) is None
    with pytest.warns(QuireWarning, match="given but not kept"):
        write_answers(kept, made)


WHOLE = json.dumps([NOTHING])
ODD: list[Any] = [5, [5], {"a": 1}, [{"x": 1}], "x", [[1], [1, 2]]]
DAMAGED: list[str | bytes] = [
    *("", "[", "null", "{}", "[]", "[5]", "[[]]", '["a"]', "[{}]", "[" * 100_000, WHOLE + "]"),
    *(WHOLE * 2, f"[{WHOLE}]", WHOLE.replace("{", '{"a": NaN, ', 1)[:-1], "\0" * 50),
    *(json.dumps([{**NOTHING, "logprobs": bad}]) for bad in ODD),
    *(json.dumps([{**NOTHING, "embeddings": bad}]) for bad in ODD[2:]),
]


@pytest.mark.parametrize("text", [*DAMAGED, WHOLE.encode("utf-16"), b"\xff"])
def test_answers_that_a_disk_spoiled_are_computed_again(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.warns(QuireWarning, match="its rows are computed again"):
        assert read_answers(path, 1) is None


def test_a_journal_that_is_no_folder_is_refused_before_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = vLLMEngineProcessorConfig(
        model_source="/nowhere", journal=str(tmp_path / "file"), id_column="id"
    )
    with pytest.raises(InvalidOption, match="file' is no folder and cannot be made"):
        EngineUDF(config, None)


def test_a_journal_keeps_apart_what_was_asked_otherwise(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)

    def file(rows: list[Row], **changed: Any) -> Path:
        usual: Row = {
            "model_source": str(tmp_path),
            "journal": str(tmp_path / "kept"),
            "id_column": "id",
        }
        return AnswerFiles(vLLMEngineProcessorConfig(**{**usual, **changed}), RENDERING).file(rows)

    def seen(picture: Any) -> list[Row]:
        return [{"id": 1, "prompt": "x", "multimodal_data": {"image": picture}}]

    rows = [{"id": 1, "prompt": "one", "sampling_params": GREEDY, "when": 1.5}]
    pictures = [np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)]
    found = [
        file(rows),
        file([{**rows[0], "prompt": "two"}]),
        file([{**rows[0], "sampling_params": {**GREEDY, "seed": 1}}]),
        file([{**rows[0], "model": "adapter"}]),
        file(rows, engine_kwargs={"max_model_len": 64}),
        file(rows, task_type="embed"),
        file(rows, detokenize=False),
        *(file(seen(picture)) for picture in pictures),
        *(file(seen(Image.fromarray(picture))) for picture in pictures),
    ]
    assert len(set(found)) == len(found)
    assert file([{**rows[0], "when": 2.5}]) == found[0]  # the pipeline's own column
    assert file(seen(Image.fromarray(pictures[0]))) == found[-2]
    with pytest.raises(InvalidOption, match="id_column='id' is no column of a row that has prompt"):
        file([{"prompt": "x"}])
    model.get_input_embeddings().weight.data.zero_()
    model.save_pretrained(tmp_path)
    assert file(rows) != found[0]  # other weights under the same name


def test_a_journal_knows_files_by_what_they_hold(tmp_path: Path) -> None:
    """What changes at the same path is another question; what is only touched is the same."""
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG))
    template, generation = tmp_path / "chat.jinja", tmp_path / "said" / "generation_config.json"
    kwargs = {
        "load_format": "dummy",
        "chat_template": str(template),
        "hf_token": "hf_first",
        "generation_config": str(generation.parent),
        "trust_remote_code": True,
    }
    adapter, picture = tmp_path / "nice", tmp_path / "a.png"
    part = {"type": "image_url", "image_url": {"url": picture.as_uri()}}
    row: Row = {"id": 1, "model": "nice", "messages": [{"role": "user", "content": [part]}]}

    def file(row: Row = row, **changed: Any) -> Path:
        usual: Row = {
            "model_source": str(config.parent),
            "journal": str(tmp_path / "kept"),
            "id_column": "id",
        }
        usual |= {"engine_kwargs": kwargs, "dynamic_lora_loading_path": str(tmp_path)}
        return AnswerFiles(vLLMEngineProcessorConfig(**{**usual, **changed}), RENDERING).file([row])

    seen = [file()]  # of an adapter that is not there yet
    for path in (
        config,
        config.with_name("tokenizer.json"),
        config.with_name("spiece.model"),
        config.with_name("modeling_own.py"),
        template,
        generation,
        adapter / "adapter_config.json",
        adapter / "adapter_model.safetensors",
        picture,
    ):
        path.parent.mkdir(exist_ok=True)
        for held in (b"{}", b"[]"):
            path.write_bytes(held)
            seen.append(file())
            os.utime(path) if path != picture else None
            assert file() == seen[-1]
    pairs_of_adapter = 2  # the first of its files alone is none yet
    assert len(set(seen)) == len(seen) - pairs_of_adapter
    assert file(engine_kwargs={**kwargs, "hf_token": "hf_second"}) == seen[-1]
    assert file({**row, "model": "none"}) != seen[-1]


def test_a_stage_that_is_off_leaves_its_work_to_the_pipeline(options: dict[str, Any]) -> None:
    off = {"chat_template_stage": False, "tokenize_stage": False, "detokenize_stage": False}
    engine = EngineUDF(vLLMEngineProcessorConfig(**options, **off), None)
    asked = {"sampling_params": {**GREEDY, "detokenize": False}, "messages": CHAT}
    found = answers(engine, [{**asked, "tokenized_prompt": np.array([5, 6, 7])}, asked])
    assert found[0]["prompt_token_ids"] == [5, 6, 7] and found[0]["generated_text"] == ""
    assert len(found[0]["generated_tokens"]) == 6
    assert "chat_template_stage is on" in found[1][ERROR]


def test_embeddings_of_a_pipeline_are_those_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "mean_tokens")
    kwargs = {"dtype": "float32", "max_model_len": 60, "enforce_eager": True}
    config = vLLMEngineProcessorConfig(
        model_source=str(tmp_path), task_type="embed", engine_kwargs=kwargs, detokenize=False
    )
    found = answers(EngineUDF(config, None), [{"prompt": text} for text in texts(5)])
    with open_llm(tmp_path) as llm:
        wanted = [one.outputs.embedding for one in llm.embed(texts(5), use_tqdm=False)]
    assert [row["prompt"] for row in found] == texts(5)
    assert np.allclose([row["embeddings"] for row in found], wanted, atol=1e-6)


def test_columns_of_the_data_set_stay_and_errors_are_a_column_of_all() -> None:
    packed = _packed(lambda row: {"prompt": row["text"].upper()})({"text": "a", "kept": 1})
    assert packed[DATA].row == {"text": "a", "prompt": "A", "kept": 1}

    def finished(row: Row) -> Row:
        return {"kept": row["kept"]}

    assert _unpacked(finished, True)(packed) == {"kept": 1, ERROR: ""}
    assert _unpacked(finished, False)(packed) == {"kept": 1}
    failed = {DATA: Packed({"text": "a", ERROR: "why"})}
    assert _unpacked(finished, True)(failed) == {"text": "a", ERROR: "why"}
