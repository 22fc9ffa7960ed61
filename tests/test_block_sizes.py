"""Blocks of the KV cache of any size that may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import SamplingParams
from tests.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("every_block_is_free_afterwards")


@pytest.mark.parametrize("invariant", [False, True])
def test_any_size_of_blocks_gives_the_same_tokens(tmp_path: Path, invariant: bool) -> None:
    prompts = ["one " * 300, "two " * 150, "one " * 300 + "and more"]
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
    found = []
    for size in (16, 384):
        with tiny_llm(tmp_path, block_size=size, batch_invariant=invariant) as llm:
            found.append([out.outputs[0].token_ids for out in llm.generate(prompts, params)])
    assert found[0] == found[1]
