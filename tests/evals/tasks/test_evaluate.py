"""Whole evaluations: questions, engine, scores, and the same figures as a plain loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.evals.scoring.scores import read_row_scores, read_scores
from quire.evals.tasks.evaluate import EvalOptions, evaluate
from quire.jobs.output.results import StoredRun
from tests.tiny_llm import CONFIG

COMMAND = ("quire", "eval")
# float32: what is compared with Transformers must compute the same sums.
OPTIONS = {"dtype": "float32", "kv_cache_memory_bytes": 256 << 20}
RANDOM = {**OPTIONS, "load_format": "dummy", "tokenizer": "smollm2"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model, with room for prompts of five shots."""
    folder = tmp_path_factory.mktemp("tiny")
    config = {**CONFIG, "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_multiple_choice_is_run_scored_and_grouped(tiny: str, tmp_path: Path) -> None:
    asked = EvalOptions(model=tiny, output=tmp_path / "mmlu.jsonl", limit=4, options=RANDOM)
    report = evaluate("mmlu", asked, COMMAND)
    [acc] = report.scores
    assert (acc.metric, acc.mean.num, report.job.num_failed) == ("acc", 4, 0)
    assert len(acc.groups["subject"]) == 4 and set(acc.groups) == {"field", "subject"}
    again = evaluate("mmlu", asked, COMMAND)  # nothing is left to do, and the scores are the same
    assert again.job.num_before == 4
    assert again.scores == report.scores == read_scores(report.job.job_dir)


def test_generation_is_run_and_read_for_numbers(tiny: str, tmp_path: Path) -> None:
    asked = EvalOptions(
        model=tiny,
        output=tmp_path / "gsm8k.jsonl",
        limit=2,
        shots=0,
        max_tokens=8,
        options=RANDOM,
    )
    report = evaluate("gsm8k", asked, COMMAND)
    names = ["exact_match,strict-match", "exact_match,flexible-extract"]
    assert [score.metric for score in report.scores] == names
    rows = list(read_row_scores(report.job.job_dir, names[1]))
    assert len(rows) == 2 and all(row.value in (0.0, 1.0) for row in rows)


def test_humaneval_is_written_down_and_not_scored(tiny: str, tmp_path: Path) -> None:
    asked = EvalOptions(
        model=tiny,
        output=tmp_path / "humaneval.jsonl",
        limit=2,
        max_tokens=8,
        options=RANDOM,
    )
    report = evaluate("humaneval", asked, COMMAND)
    assert report.scores == [] and report.samples is not None
    samples = [json.loads(line) for line in report.samples.read_text().splitlines()]
    assert [sample["task_id"] for sample in samples] == ["HumanEval/0", "HumanEval/1"]
    assert all(set(sample) == {"task_id", "completion"} for sample in samples)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "limit"), [("mmlu", 10), ("arc_easy", 10), ("arc_challenge", 10), ("hellaswag", 10)]
)
def test_scores_are_those_of_a_plain_transformers_loop(
    name: str, limit: int, default_model: Path, tmp_path: Path, oracle: Any
) -> None:
    """Forty questions: every choice's log-probability, and with them every score."""
    output = tmp_path / f"{name}.jsonl"
    asked = EvalOptions(model=str(default_model), output=output, limit=limit, options=OPTIONS)
    report = evaluate(name, asked, COMMAND)
    right = {"acc": 0, "acc_norm": 0}
    for row in StoredRun.open(output).rows():
        context = row.columns["prompt"]
        plain = [oracle(context, ending) for ending in row.columns["continuations"]]
        stored = [logprob for _, logprob in row.continuations]
        assert stored == pytest.approx(plain, abs=5e-3)
        lengths = [len(choice) for choice in row.columns["choices"]]
        truth = row.columns["truth"]
        right["acc"] += plain.index(max(plain)) == truth
        per_letter = [value / length for value, length in zip(plain, lengths, strict=True)]
        right["acc_norm"] += per_letter.index(max(per_letter)) == truth
    for score in report.scores:
        assert score.mean.value == pytest.approx(right[score.metric] / limit)


@pytest.fixture(scope="module")
def oracle(default_model: Path) -> Any:
    """log p(ending | context), one forward pass of Transformers each, nothing shared."""
    import torch

    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.weights.gguf_file import GgufFile
    from tests.parity.make_oracle import load_model

    model = load_model(default_model)
    tokenizer = load_gguf_tokenizer(GgufFile(default_model).metadata)

    @torch.no_grad()
    def logprob(context: str, ending: str) -> float:
        whole, before = (tokenizer.encode(text).tolist() for text in (context + ending, context))
        chances = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)
        at = range(len(before) - 1, len(whole) - 1)
        return sum(float(chances[place, whole[place + 1]]) for place in at)

    return logprob
