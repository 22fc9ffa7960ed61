"""Jobs whose rows are answered by LoRA adapters, named on the command line or by a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama import LlamaConfig

from quire import InvalidOption, Job, JobChanged
from quire.errors import InvalidAdapter
from quire.jobs.adapters import engine_options, parse_lora
from quire.jobs.input.prompts import PromptMaker
from quire.jobs.input.rows import BadRow
from tests.adapters.peft_files import make_peft, random_model

CONFIG = LlamaConfig(
    vocab_size=49152,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.25,
)


def test_names_and_paths_are_read_from_flags_and_mappings() -> None:
    assert parse_lora(["a=/x/y=z", "b=owner/name"]) == {"a": "/x/y=z", "b": "owner/name"}
    assert parse_lora({"a": Path("/x")}) == {"a": "/x"}
    for wrong in (["a"], ["=x"], ["a="], ["a=x", "a=y"], 5):
        with pytest.raises(InvalidOption, match="--lora"):
            parse_lora(wrong)


def test_a_row_names_its_adapter_and_its_content() -> None:
    maker = PromptMaker(prompt="{{ text }}", lora={"a": "1f", "b": "2f"}, lora_column="who")
    assert maker.ask({"text": "x", "who": "b"}) == {"lora": ["b", "2f"], "prompt": "x"}
    for nothing in (None, ""):
        assert maker.ask({"text": "x", "who": nothing}) == {"prompt": "x"}
    for wrong in ("zz", 7, ["a"]):
        with pytest.raises(BadRow) as refused:
            maker.ask({"text": "x", "who": wrong})
        assert refused.value.kind == "unknown_adapter" and "'a', 'b'" in refused.value.message
    with pytest.raises(BadRow):
        maker.ask({"text": "x"})
    alone = PromptMaker(prompt="{{ text }}", lora={"a": "1f"})
    assert alone.ask({"text": "x"})["lora"] == ["a", "1f"]


@pytest.mark.parametrize(
    "options",
    [
        {"lora_column": "who"},
        {"lora": ["a=x", "b=y"]},
        {"lora": ["a=x"], "continuations": "endings"},
    ],
    ids=("a column without adapters", "several without a column", "endings"),
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="lora"):
        Job("in.jsonl", "out.jsonl", model="m", prompt="{{ text }}", **options)


def test_rows_are_answered_by_the_adapters_they_name(tmp_path: Path) -> None:
    model = random_model(CONFIG)
    model.save_pretrained(tmp_path / "base")
    pefts = [make_peft(model, ("q_proj", "down_proj"), seed=i, rank=18) for i in (1, 2)]
    paths = {f"a{i}": str(p.save(tmp_path / f"a{i}")) for i, p in enumerate(pefts, start=1)}
    assert engine_options(paths, {}) == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 18}
    rows = [{"text": "the sea", "who": who} for who in ("a1", "a2", None, "zz", "a1")]

    def job(**changes: Any) -> Job:
        given: dict[str, Any] = {"lora": paths, "lora_column": "who", **changes}
        options = {"tokenizer": "smollm2", "dtype": "float32", "kv_cache_memory_bytes": 4 << 20}
        return Job(
            rows,
            tmp_path / "out.jsonl",
            model=str(tmp_path / "base"),
            prompt="{{ text }}",
            chat=False,
            max_tokens=4,
            options=options,
            **given,
        )

    report = job().run(progress=False)
    assert (report.num_ok, report.num_failed) == (4, 1)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = [row["output"] for row in found]
    assert texts[0] == texts[4] and len({texts[0], texts[1], texts[2]}) == 3
    assert found[3]["error_type"] == "unknown_adapter" and "'zz'" in found[3]["error"]
    make_peft(model, ("q_proj",), seed=9).save(tmp_path / "a2")
    with pytest.raises(JobChanged, match="lora.a2"):
        job().run(progress=False)
    with pytest.raises(InvalidAdapter, match="nowhere"):
        job(lora={**paths, "a3": str(tmp_path / "nowhere")}).run(progress=False)
