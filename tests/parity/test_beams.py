"""Beam search equals Transformers' generate(num_beams): tokens, scores and stopping."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, BeamSearchOutput, BeamSearchParams, SamplingParams, StructuredOutputsParams
from tests.parity.families import OF_EACH_KIND, make_pair
from tests.parity.make_beam_oracle import Beams, transformers_beams
from tests.parity.make_oracle import load_model

ORACLE = Path(__file__).parent / "beam_oracle.json.gz"
NEAR_TIE = 1e-3  # between the scores of two beams
NUM_IN_GATE = 3


def compare(found: BeamSearchOutput, beams: Beams, scores: list[float], penalty: float) -> bool:
    """True if the beams are the same, token for token. Otherwise theirs and ours must differ by
    near ties alone: rank by rank the scores agree all the same."""
    ours = [s.output_token_ids for s in found.sequences]
    mine = [s.cum_logprob / len(s.output_token_ids) ** penalty for s in found.sequences]
    assert len(ours) == len(beams)
    for ours_score, theirs_score in zip(mine, scores, strict=True):
        assert abs(ours_score - theirs_score) <= NEAR_TIE, (ours, beams, mine, scores)
    return ours == beams


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(ORACLE.read_bytes()))
    return found


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(str(default_model), dtype="float32", kv_cache_memory_bytes=1 << 30) as made:
        yield made


def search_all(llm: LLM, searches: list[dict[str, Any]], max_tokens: int) -> int:
    """Run searches of the oracle; how many found other beams, by a near tie."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in searches:
        key = json.dumps([one["width"], one["length_penalty"], one["early_stopping"]])
        kinds.setdefault(key, []).append(one)
    num_different = 0
    pool = llm._session.engine.scheduler.pool
    for kind in kinds.values():
        params = BeamSearchParams(
            kind[0]["width"],
            max_tokens,
            length_penalty=kind[0]["length_penalty"],
            early_stopping=kind[0]["early_stopping"],
        )
        outputs = llm.beam_search([one["prompt"] for one in kind], params)
        assert pool.num_free == pool.num_blocks
        for output, one in zip(outputs, kind, strict=True):
            same = compare(output, one["beams"], one["scores"], params.length_penalty)
            num_different += not same
    return num_different


def test_some_searches_equal_transformers(llm: LLM, oracle: dict[str, Any]) -> None:
    searches = oracle["searches"]
    assert len(searches) == 64 * 3 and {one["width"] for one in searches} == {2, 4, 8}
    some = [one for one in searches if one["width"] == 4][:: 64 // NUM_IN_GATE]
    assert search_all(llm, some, oracle["max_tokens"]) <= 1


@pytest.mark.long
def test_sixty_four_prompts_with_three_widths_equal_transformers(
    llm: LLM, oracle: dict[str, Any]
) -> None:
    num_different = search_all(llm, oracle["searches"], oracle["max_tokens"])
    print(f"{num_different} of {len(oracle['searches'])} searches part at a near tie")
    assert num_different <= 4


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_every_family_equals_transformers(name: str, tmp_path: Path) -> None:
    """With twelve end ids out of 96 tokens, searches end in every way there is."""
    pair = make_pair(name)
    eos_ids = [3, 9, 17, 25, 33, 40, 41, 58, 66, 74, 82, 90]
    pair.oracle.config.eos_token_id = pair.oracle.generation_config.eos_token_id = eos_ids
    pair.oracle.save_pretrained(tmp_path)
    rng = random.Random(name)
    prompts = [[rng.randrange(96) for _ in range(rng.randint(1, 40))] for _ in range(3)]
    kinds = [
        BeamSearchParams(2, 12),
        BeamSearchParams(5, 14, length_penalty=0.3),
        BeamSearchParams(3, 12, early_stopping=True),
        BeamSearchParams(4, 10, length_penalty=1.5, early_stopping="never"),
        BeamSearchParams(4, 10, True),
    ]
    options: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 37}
    reasons = set()
    with LLM(
        str(tmp_path), dtype="float32", skip_tokenizer_init=True, max_num_seqs=16, **options
    ) as llm:
        for params in kinds:
            outputs = llm.beam_search(prompts, params)
            for prompt, output in zip(prompts, outputs, strict=True):
                ends = [] if params.ignore_eos else eos_ids
                beams, scores = transformers_beams(pair.oracle, prompt, params, ends)
                compare(output, beams, scores, params.length_penalty)
                for sequence in output.sequences:
                    ended = sequence.output_token_ids[-1] in ends
                    assert sequence.finish_reason == ("stop" if ended else "length")
                    reasons.add(sequence.finish_reason)
        pool = llm._session.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks
    assert reasons == {"stop", "length"}


@pytest.mark.long
def test_beams_in_a_grammar_equal_transformers(llm: LLM, default_model: Path) -> None:
    """Transformers is told which tokens the grammar allows, after every beam's own tokens."""
    model = load_model(default_model)
    shape = StructuredOutputsParams(regex=r" (red|green|blue)(, (red|green|blue)){1,3}\.")
    prompt = llm.get_tokenizer().encode("The three primary colours are")
    grammar = llm._session._guides.compile(SamplingParams(structured_outputs=shape))
    assert grammar is not None

    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        matcher = grammar.result().matcher()
        for token in ids[len(prompt) :].tolist():
            if not matcher.accept(token):
                return [0]
        bits = np.zeros(-(-model.config.vocab_size // 32), np.uint32)
        matcher.fill(bits)
        return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()

    for width in (2, 4):
        params = BeamSearchParams(width, 16, structured_outputs=shape)
        [found] = llm.beam_search([prompt], params)
        beams, scores = transformers_beams(
            model, prompt, params, [2], prefix_allowed_tokens_fn=allowed
        )
        assert compare(found, beams, scores, 1.0)
