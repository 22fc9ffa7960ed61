"""speculative_config: what is followed, what changes no text and is said; no devices are one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quire.config import Speculation
from quire.errors import QuireWarning
from quire.options import Options, parse_options, resolve
from tests.test_decided_config import cpu, gpu, spec
from tests.test_options import Nudge


def test_tokens_are_guessed_by_default_where_no_bit_depends_on_it() -> None:
    steady = dataclasses.replace(cpu(), steady_kernels=True)
    usual = resolve(Options(), spec(), steady).speculation
    assert usual is not None and usual.num_tokens > 0
    never = parse_options({"speculative_config": {"num_speculative_tokens": 0}})
    seeing = parse_options({"logits_processors": [Nudge]})
    assert resolve(never, spec(), steady).speculation is None
    assert resolve(seeing, spec(), steady).speculation is None
    assert resolve(Options(), spec(), cpu()).speculation is None
    assert resolve(Options(), spec(), gpu(80, "bfloat16")).speculation is None


def test_guessing_that_was_asked_for_is_done_or_the_reason_said() -> None:
    asked = parse_options({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}})
    config = resolve(asked, spec(), cpu())
    assert config.speculation == Speculation(3, 1, 8)
    assert any("near ties" in line for line in config.notes)
    on_gpu = resolve(asked, spec(), gpu(80, "bfloat16"))
    assert on_gpu.speculation == Speculation(3, 1, 8, device_lines=16)
    steady = dataclasses.replace(asked, batch_invariant=True)
    in_steady = resolve(steady, spec(), gpu(80, "bfloat16")).speculation
    assert in_steady is not None and in_steady.device_lines > 16
    seeing = dataclasses.replace(asked, logits_processors=(Nudge,))
    for device in (cpu(), gpu(80, "bfloat16")):
        without = resolve(seeing, spec(), device)
        assert without.speculation is None
        why = "speculative_config is not followed: logits_processors"
        assert any(why in note for note in without.notes)
    off = parse_options({"speculative_config": {"num_speculative_tokens": 0}})
    assert resolve(off, spec(), gpu(80, "bfloat16")).speculation is None


@pytest.mark.parametrize(
    "draft",
    [
        {"model": "some/draft", "num_speculative_tokens": 5},
        {"method": "eagle3", "model": "some/head"},
        {"method": "deepseek_mtp", "num_speculative_tokens": 1},
    ],
)
def test_a_draft_model_is_left_out_with_a_word(draft: dict[str, Any]) -> None:
    with pytest.warns(QuireWarning, match="text is the same"):
        assert parse_options({"speculative_config": draft}).speculative_config is None


def test_limits_on_guessing_change_nothing_and_are_said() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 2, "disable_by_batch_size": 4}
    with pytest.warns(QuireWarning, match="disable_by_batch_size in speculative_config"):
        found = parse_options({"speculative_config": given}).speculative_config
    assert found == Speculation(2, 1, 8)


def test_no_devices_are_one() -> None:
    with pytest.warns(QuireWarning, match="tensor_parallel_size=0 is taken as 1"):
        assert parse_options({"tensor_parallel_size": 0}) == Options()
