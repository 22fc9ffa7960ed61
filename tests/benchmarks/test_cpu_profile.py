"""The profile counts each second once, and knows what the operations had to do."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cpu_profile
from benchmarks.cpu_profile import Entry, Meter, Peaks, Work
from quire.backends.ops import AttentionInputs, HeadShape


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_an_operation_calls_is_not_counted_twice() -> None:
    clock = Clock()
    meter = Meter(clock)

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    inner = meter.timed(lambda s: f"of {s:g}", pass_time, lambda s: Work(10 * s, s), "int8")

    def outer() -> None:
        pass_time(1)
        inner(4)
        inner(4)

    meter.timed("outer", outer)()
    assert meter.entries["outer"] == Entry("float", 1.0, 1, 0.0, 0.0)
    assert meter.entries["of 4"] == Entry("int8", 8.0, 2, 80.0, 8.0)


def test_a_failing_operation_is_counted_and_fails() -> None:
    meter = Meter(Clock())

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        meter.timed("failing", fail)()
    assert meter.entries["failing"].calls == 1


def test_the_work_of_attention() -> None:
    """A slice of 3 tokens up to position 5, and two rows of 20 and 30 that share a block of 16."""
    shape = HeadShape(4, 2, 8, 16, torch.float32)
    inputs = AttentionInputs(
        torch.tensor([0, 3, 4, 5]),
        torch.tensor([5, 20, 30]),
        torch.zeros(3, 2, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
        1,
        ((torch.tensor([1]), torch.tensor([1, 2])),),
    )
    work = cpu_profile.attention_work(shape, inputs, 4)
    assert work.operations == 2 * 2 * 8 * 4 * (3 + 4 + 5 + 20 + 30)
    assert work.bytes == 2 * 4 * 8 * 2 * (5 + 20 + 30 - 16)


def test_the_table_has_shares_of_the_right_peaks() -> None:
    entries = {"a": Entry("int8", 1.0, 3, 50e9, 0.0), "b": Entry("float", 3.0, 1, 30e9, 12e9)}
    lines = cpu_profile.table(entries, 4.0, Peaks(100e9, 20e9, 8e9)).splitlines()
    assert lines[2] == "| b | 3.000 | 75.0% | 1 | 30 | 50% | 12.0 | 50% |"
    assert lines[3] == "| a | 1.000 | 25.0% | 3 | 50 | 50% | 0.0 |  |"
    assert lines[4] == "| all | 4.000 | 100% | | 80 | | | |"


@pytest.mark.long
def test_every_second_of_a_run_is_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    cpu_profile.main(["--workload", "small_fewshot", "--share", "0.02", "--runs", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = [line.split("|")[1].strip() for line in lines]
    seconds = [float(line.split("|")[2]) for line in lines[1:]]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], rel=0.05, abs=0.03)
    for word in ("attention", "product 576 x 3072", "logits", "drawing", "scheduling", "norms"):
        assert any(name.startswith(word) for name in names), word


def test_options_of_the_llm_are_words_among_the_others() -> None:
    arguments = cpu_profile.parse(["--workload", "small_mixed", "kv_cache_dtype=float32"])
    assert (arguments.workload, arguments.options) == (
        ["small_mixed"],
        {"kv_cache_dtype": "float32"},
    )
