"""The comparison runs each engine alone, on the same work, and prints ratios."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_compare, shapes, transformers_bench, workloads
from benchmarks.cpu_compare import TRANSFORMERS, Figure
from tests.weights.tiny import tiny_model, write_gguf


def test_equal_work_has_equal_lengths() -> None:
    items = cpu_compare.items_of("small_equal", 0.25)
    assert [(len(item.prompt), item.max_tokens) for item in items] == [(128, 80)] * 16
    assert len({tuple(item.prompt) for item in items}) == 16


@pytest.mark.long
def test_an_engine_runs_in_a_process_of_its_own() -> None:
    arguments = cpu_compare.parse(
        ["--workload", "small_equal", "--scale", "0.02", "--threads", "1"]
    )
    (figure,) = cpu_compare.run_alone("quire int8", arguments)
    assert (figure.tokens_in, figure.tokens_out) == (128, 80)
    assert figure.seconds > 0


def test_transformers_computes_with_the_weights_of_a_gguf_file(tmp_path: Path) -> None:
    module = tiny_model("llama")
    path = write_gguf(module, tmp_path / "model.gguf")
    loaded = transformers_bench.load(shapes.Model("tiny", str(path)))
    ids = torch.tensor([[5, 9, 60, 33]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, module(ids).logits)
    assert transformers_bench.generate(loaded, [workloads.Item([5, 9, 60], 2)]) > 0


def test_ratios_are_to_transformers_on_the_same_workload() -> None:
    figures = [
        Figure("a", "quire int8", 2.0, 100, 100, 0.1),
        Figure("a", TRANSFORMERS, 15.0, 100, 100, 0.1),
        Figure("b", "quire int8", 3.0, 100, 100, 0.1),
    ]
    lines = cpu_compare.table(figures).splitlines()
    assert "7.50x" in lines[1]
    assert "1.00x" in lines[2]
    assert "x" not in lines[3].split()[-2]


def test_llama_cpp_is_asked_for_the_same_work(tmp_path: Path) -> None:
    """A stand-in that prints what the real program prints, and checks what it was asked."""
    program = tmp_path / "build" / "bin" / "llama-batched-bench"
    program.parent.mkdir(parents=True)
    answer = json.dumps({"pp": 128, "tg": 80, "pl": 64, "t_pp": 1.0, "t_tg": 2.0, "t": 3.5})
    program.write_text(
        f"#!{sys.executable}\nimport sys\nasked = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "wanted = {'-m': 'q4.gguf', '-npp': '128', '-ntg': '80', '-npl': '64', '-t': '2'}\n"
        "assert wanted.items() <= asked.items(), asked\n"
        f"print('some words'); print('''{answer}''')\n"
    )
    program.chmod(0o700)
    arguments = cpu_compare.parse(
        ["--llama", str(program), "--llama-model", "q4.gguf", "--threads", "2"]
    )
    figure = cpu_compare.run_llama(str(program), "q4.gguf", arguments)
    assert (figure.workload, figure.seconds) == ("small_equal", 3.5)
    assert figure.engine == "llama.cpp build q4"
    assert (figure.tokens_in, figure.tokens_out) == (64 * 128, 64 * 80)


def test_one_without_the_other_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu_compare.parse(["--llama", "somewhere"])
    assert "go together" in capsys.readouterr().err
