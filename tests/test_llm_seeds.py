"""Seeds through LLM: noise is a function of its key alone."""

from __future__ import annotations

from pathlib import Path

from quire import LLM, SamplingParams
from tests.test_llm import generate, ids
from tests.tiny_llm import tiny_llm


def test_equal_unseeded_prompts_differ_and_a_second_call_differs_from_the_first(
    tmp_path: Path,
) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=5)
    with tiny_llm(tmp_path) as first:
        one, two = generate(first, ["same"] * 16, params), generate(first, ["same"] * 16, params)
    with tiny_llm(tmp_path) as again:
        repeated = generate(again, ["same"] * 16, params)
    with tiny_llm(tmp_path, seed=7) as other:
        reseeded = generate(other, ["same"] * 16, params)
    assert len({tuple(i) for i in ids(one)}) > 8
    assert ids(one) != ids(two)
    assert ids(repeated) == ids(one)
    assert ids(reseeded) != ids(one)


def test_a_seed_gives_the_same_text_in_any_order_and_company(llm: LLM) -> None:
    def seeded(seed: int) -> SamplingParams:
        return SamplingParams(temperature=1.0, max_tokens=6, seed=seed)

    alone = {s: ids(generate(llm, "seeded", seeded(s)))[0] for s in range(5)}
    order = [3, 0, 4, 1, 2]
    together = ids(generate(llm, ["seeded"] * 5, [seeded(s) for s in order]))
    assert together == [alone[s] for s in order]
    assert len({tuple(a) for a in alone.values()}) == 5


def test_samples_of_one_prompt_are_numbered_and_differ(llm: LLM) -> None:
    (output,) = generate(llm, "many", SamplingParams(n=6, temperature=1.0, max_tokens=5, seed=1))
    assert [o.index for o in output.outputs] == list(range(6))
    assert len({tuple(o.token_ids) for o in output.outputs}) == 6
