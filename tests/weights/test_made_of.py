"""Which files a model's answers depend on, and that a job sees them change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption, JobChanged
from quire.jobs.job import Job
from quire.weights.made_of import made_of
from tests.tiny_llm import CONFIG, tiny_llm
from tests.weights.tiny import tiny_model, write_gguf

DUMMY = {"load_format": "dummy"}


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")


def names(folder: Path, paths: tuple[Path, ...]) -> list[str]:
    return [str(path.relative_to(folder)) for path in paths]


def test_every_file_that_is_read_counts_and_no_other(tmp_path: Path) -> None:
    own = ["1_Pooling/config.json", "2_Dense/model.safetensors", "config.json", "modules.json"]
    code, words = ["modeling_x.py"], ["chat_template.jinja", "qwen.tiktoken", "vocab.txt"]
    write(tmp_path, *own, *code, *words, "2_Dense/config.json", "README.md", "onnx/model.onnx")
    write(tmp_path, "additional_chat_templates/rag.jinja")
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "gone.json").symlink_to("nowhere")
    (tmp_path / "folder.json").mkdir()
    found = made_of(str(tmp_path), DUMMY)
    assert names(tmp_path, found.model) == sorted([*own, "2_Dense/config.json"], key=_by_folder)
    words.append("additional_chat_templates/rag.jinja")
    assert names(tmp_path, found.tokenizer) == words
    trusted = made_of(str(tmp_path), {**DUMMY, "trust_remote_code": True})
    assert set(names(tmp_path, trusted.model)) == {*own, *code, "2_Dense/config.json"}


def test_a_model_in_a_folder_counts_with_what_lies_around_it(tmp_path: Path) -> None:
    own = ["config.json", "modules.json", "1_Pooling/config.json"]
    inner = ["a/0_Transformer/config.json", "a/0_Transformer/model.safetensors"]
    (tmp_path / "a").mkdir()
    write(tmp_path, *own, *inner, "a/0_Transformer/vocab.txt", "vocab.txt")
    modules = [{"type": "x.Transformer", "path": "a/0_Transformer/"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    found = made_of(str(tmp_path), DUMMY)
    assert sorted(names(tmp_path, found.model)) == sorted([*own, *inner])
    assert names(tmp_path, found.tokenizer) == ["a/0_Transformer/vocab.txt"]


def _by_folder(name: str) -> tuple[str, str]:
    folder, _, rest = name.rpartition("/")
    return folder, rest


def test_options_name_files_too(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    write(tmp_path, "model/config.json", "other/config.json", "other/tokenizer.json")
    write(tmp_path, "model/tokenizer.json", "other/generation_config.json", "t.jinja")
    given = {"tokenizer": str(other), "generation_config": str(other)}
    found = made_of(str(model), {**DUMMY, **given, "chat_template": str(tmp_path / "t.jinja")})
    assert names(tmp_path, found.tokenizer) == ["other/tokenizer.json", "t.jinja"]
    assert names(tmp_path, found.model) == ["model/config.json", "other/generation_config.json"]
    text = "{{ messages }}" * 1000  # a template, and no name of a file
    plain = made_of(str(model), {**DUMMY, "generation_config": "auto", "chat_template": text})
    assert names(tmp_path, plain.tokenizer) == ["model/tokenizer.json"]


def test_every_part_of_a_split_gguf_counts(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", split=7)
    parts = sorted(tmp_path.iterdir())
    assert made_of(str(parts[0]), {}).model == tuple(parts) and len(parts) >= 4


def test_a_job_writes_messages_by_the_template_it_was_given(tmp_path: Path) -> None:
    """The option was read by LLM.chat alone; and a finished job did not see that it changed."""
    model, template = tmp_path / "model", tmp_path / "chat.jinja"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")

    def job(**options: Any) -> Job:
        usual = {**DUMMY, "tokenizer": "smollm2", "kv_cache_memory_bytes": 4 << 20}
        return Job(
            [{"text": "a"}, {"text": "b"}],
            tmp_path / "out.jsonl",
            model=str(model),
            prompt="{{ text }}",
            max_tokens=2,
            options={**usual, "chat_template": str(template), **options},
        )

    assert job().run(progress=False).prompt_tokens == 2
    assert job().run(progress=False).num_before == 2
    template.write_text("{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}")
    with pytest.raises(JobChanged, match=r"tokenizer_files: .*chat\.jinja is not what it was"):
        job().run(progress=False)
    template.unlink()  # what is gone is not missed
    assert job().run(progress=False).num_before == 2


def test_a_template_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="chat_template is 'missing.jinja'"):
        tiny_llm(tmp_path, chat_template="missing.jinja", tokenizer="no/such/tokenizer")
