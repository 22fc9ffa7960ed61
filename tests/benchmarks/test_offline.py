"""The benchmark runs from its command line, on a tiny shape, and says what it measured."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from benchmarks import offline, scheduler, shapes, workloads
from benchmarks.roofline import MODELS, Shape, groups, seconds

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 10_000,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    monkeypatch.setattr(shapes, "MODELS", tmp_path)
    return "tiny"


def test_a_workload_is_measured_against_transformers(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ["--model", tiny, "--workload", "small_fewshot", "max_num_seqs=4", "--scale", "0.06"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Transformers' own
        offline.main(
            [*words, "--dtype", "float32", "--against", "transformers", "--json", str(out)]
        )
    printed = capsys.readouterr().out
    assert "small_fewshot" in printed and "transformers, batches of 16" in printed
    report = json.loads(out.read_text())
    ours, theirs = report["measured"]
    items = workloads.build("small_fewshot", 0.06)
    assert (ours["tokens_in"], ours["tokens_out"]) == workloads.totals(items)
    # The preamble of 512 tokens is computed once, in both runs: the cache began empty.
    assert ours["cached_tokens"] >= (len(items) - 1) * 512
    assert ours["cached_tokens"] < ours["tokens_in"] - 512
    assert len(ours["all_seconds"]) == 2 and ours["seconds"] == ours["all_seconds"][-1]
    assert ours["steps"] == ours["planned_steps"] > 0
    assert ours["times_transformers"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    assert report["options"] == {"max_num_seqs": 4, "dtype": "float32"}
    assert {"cpu", "torch", "date", "commit", "threads"} <= set(report["machine"])


def test_words_with_an_equals_sign_are_options_wherever_they_stand() -> None:
    words = ["--workload", "mixed", "block_size=32", "seed=3", "enforce_eager=True", "device=cpu"]
    arguments = offline.parse(words)
    assert arguments.workload == ["mixed"]
    assert arguments.options == {
        "block_size": 32,
        "seed": 3,
        "enforce_eager": True,
        "device": "cpu",
    }


@pytest.mark.parametrize("words", [["--workload", "unknown"], ["--runs", "0"], ["--what"]])
def test_bad_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        offline.parse(words)


def test_the_cost_of_scheduling_is_measured() -> None:
    cost = scheduler.measure(rows=64, steps=20)
    assert cost.rows == 64 and 0 < cost.total_p50_ms < 100
    assert "64 rows" in str(cost)


@pytest.mark.parametrize(
    ("model", "workload", "least"),
    [("llama-3.1-8b", "mixed", 10.10), ("llama-3.1-8b", "prefill", 25.07)],
)
def test_the_roofline_stays_where_it_was(model: str, workload: str, least: float) -> None:
    shape = Shape.of(json.loads((MODELS / f"{model}.json").read_text()))
    found = seconds(shape, groups(workload, workloads.build(workload)))
    assert found == pytest.approx(least, abs=0.006)
