"""Rows whose grammar the device follows by itself draw the tokens of rows that are given masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.executor import PendingStep
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.masks import MaskFiller
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from quire.request import Ints, Request
from quire.scheduler import jumps, repeats
from quire.scheduler.sequence import Guide, Sequence
from quire.step import Masks, StepPlan
from quire.weights.load import dummy_weights
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, requests
from tests.executor.harness import told
from tests.grammar.conftest import NAMED
from tests.inputs.makers import train_byte_bpe
from tests.specs import small_config

TOKENIZER = Tokenizer(train_byte_bpe(digits=False), special_tokens=NAMED)
VOCAB = TOKENIZER.vocab_size + 70  # ids beyond the tokenizer's, as models pad them
WALKED = replace(SPEC, vocab_size=VOCAB)
WEIGHTS = {
    name: w * 10 if w.dim() == 2 else w
    for name, w in dummy_weights(WALKED, dtype=torch.float32, device="cpu").items()
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "s": {"type": "string"}},
    "required": ["n", "s"],
    "additionalProperties": False,
}
REGEXES = ["[a-z ]+", "[a-z ]{24}", "([a-z]+ ){3}[a-z]+", r"\d{4}-\d{2}-\d{2}", "x[ab]{0,9}end"]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "regex": REGEXES[0]},
    {"temperature": 1.0, "n": 3, "regex": REGEXES[1]},
    {"temperature": 1.0, "top_k": 9, "logprobs": 2, "regex": REGEXES[2]},
    {"temperature": 1.0, "logprobs": 0, "regex": REGEXES[3]},
    {"temperature": 1.0, "min_tokens": 6, "logit_bias": {66: 3.0}, "regex": REGEXES[4]},
    {"temperature": 1.0, "choice": ["positive", "negative", "neutral"]},
    {"temperature": 1.0, "ignore_eos": True, "regex": REGEXES[0]},
    {"temperature": 1.0, "json": SCHEMA, "disable_any_whitespace": True},
]
GIVEN = ("regex", "choice", "json", "disable_any_whitespace")
# What the device cannot follow, or has no room for at all times: they are given masks. And one of
# which too much comes home for several steps a plan.
MASKED: list[dict[str, Any]] = [
    {"temperature": 1.0, "regex": REGEXES[0], "logprobs": -1},
    {"temperature": 1.0, "repetition_penalty": 1.3, "regex": REGEXES[0]},
    {"temperature": 1.0, "regex": "日本(語|人)"},
    {"temperature": 1.0, "allowed_token_ids": list(range(3, VOCAB)), "regex": REGEXES[1]},
]


# What llguidance alone follows, and forces in long texts between others.
NODE = {
    "type": "object",
    "properties": {
        "the value of it": {"enum": ["日本語と英語", "日本人 are many", "été après été"]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/n"}},
    },
    "required": ["the value of it", "parts"],
}
FORCED = [{"temperature": 1.0, "json": {"$ref": "#/$defs/n", "$defs": {"n": NODE}}}] * 4


@cache
def compiler(for_device: bool) -> GrammarCompiler:
    given = {"vocab_size": VOCAB, "eos_ids": TOKENIZER.eos_ids}
    return GrammarCompiler(TOKENIZER, **given, for_device=for_device)


def asked(kinds: list[dict[str, Any]], count: int, most: int) -> list[Request]:
    made = []
    for one in kinds:
        kind = dict(one)
        given = {name: kind.pop(name) for name in GIVEN if name in kind}
        ignores = kind.pop("ignore_eos", False)
        structured = StructuredOutputsParams(**given) if given else None
        made.append({**kind, "structured_outputs": structured, "ignore_eos": ignores})
    ends = frozenset(TOKENIZER.eos_ids)
    letter = TOKENIZER.backend.token_to_id("a")
    return [
        replace(
            one,
            max_tokens=min(one.max_tokens, most),
            eos_ids=frozenset() if one.params.ignore_eos else ends,
            # A text that stops the row, where its grammar allows an end.
            stop_ids=frozenset(
                {letter} if one.number % 3 == 2 and not one.params.min_tokens else ()
            ),
        )
        for one in requests(made, count=count, seed=5)
    ]


class Counted:
    """An executor, and how many rows of its plans were given masks, and how many walked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.handles, self.seen = inner, inner.handles, Counter[str]()

    def start(self) -> Any:
        return self.inner.start()

    def submit(self, plan: StepPlan) -> PendingStep:
        self.seen["masked"] += 0 if plan.masks is None else len(plan.masks.rows)
        self.seen["walks"] += sum(start.automaton > 0 for start in plan.starts)
        self.seen["long"] += plan.repeat > 1
        return self.inner.submit(plan)  # type: ignore[no-any-return]

    def reset(self) -> None:
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()


def run(
    executor: Any,
    config: EngineConfig,
    kinds: list[dict[str, Any]],
    *,
    count: int = 21,
    most: int = 40,
    num_watched: int = 0,
) -> tuple[list[Sequence], Counter[str]]:
    filler, counted = MaskFiller(1), Counted(executor)
    grammars = compiler(executor.handles.automata is not None)

    def guide_for(request: Request) -> Guide | None:
        if request.params.structured_outputs is None:
            return None
        grammar = grammars.compile(request.params.structured_outputs)
        if executor.handles.automata is not None:
            grammar.prepare_walk()
        return grammar.matcher()

    def make_masks(rows: Ints, guides: Many[Any]) -> Masks:
        bits = executor.handles.new_masks(len(rows), -(-VOCAB // 32))
        filler.fill(guides, bits)
        return Masks(rows, bits)

    made = asked(kinds, count, most)
    made = [replace(one, watched=i < num_watched) for i, one in enumerate(made)]
    try:
        found = answers(counted, config, made, guide_for=guide_for, make_masks=make_masks)
    finally:
        filler.close()
    return found, counted.seen


@cache
def wanted(names: str, count: int, most: int) -> list[Sequence]:
    """By masks, one step at a time."""
    kinds = {"walking": KINDS, "mixed": PLAIN + KINDS + MASKED}[names]
    plain = small_config(num_blocks=512)
    return run(LocalExecutor(plain, WALKED, dict(WEIGHTS)), plain, kinds, count=count, most=most)[0]


def check(found: list[Sequence], expected: list[Sequence], atol: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist(), one.request.params
        assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
        assert str(one.error) == str(other.error)
        assert told(one.logprobs)[0] == told(other.logprobs)[0]
        np.testing.assert_allclose(told(one.logprobs)[1], told(other.logprobs)[1], atol=atol)


@pytest.mark.parametrize(
    ("names", "depth", "max_repeat", "num_blocks"),
    [("walking", 2, 8, 256), ("walking", 3, 32, 60), ("mixed", 1, 1, 256), ("mixed", 3, 32, 60)],
)
def test_walking_rows_draw_the_tokens_of_rows_with_masks(
    names: str,
    depth: int,
    max_repeat: int,
    num_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step a plan and many, whatever is wasted, and with few blocks, where rows are
    preempted."""
    monkeypatch.setattr(repeats, "MOST_WASTE", 9.0)
    monkeypatch.setattr(repeats, "MOST_RESTING", 1.0)
    kinds = {"walking": KINDS, "mixed": PLAIN + KINDS + MASKED}[names]
    expected = wanted(names, 30, 40)
    config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=num_blocks)
    executor = PlainExecutor(config, WALKED, WEIGHTS, num_states=2048)
    found, seen = run(executor, config, kinds, count=30)
    check(found, expected)
    assert seen["walks"] > 15
    if names == "walking":
        assert (seen["long"] > 2) == (max_repeat > 1)
    assert (seen["masked"] > 0) == (names == "mixed")
    reasons = {(s.finish_reason, s.stop_reason) for s in found}
    assert {("stop", None), ("length", None)} <= reasons
    assert ("length", "unfinished_structured_output") in reasons
    assert any(s.num_preemptions for s in found) == (num_blocks == 60)


@pytest.mark.parametrize(("num_watched", "num_blocks"), [(15, 256), (30, 60)])
def test_rows_whose_every_step_is_reported_walk_too(num_watched: int, num_blocks: int) -> None:
    """Beside others, and alone."""
    config = small_config(depth=2, max_repeat=8, num_blocks=num_blocks)
    executor = PlainExecutor(config, WALKED, WEIGHTS, num_states=2048)
    found, seen = run(executor, config, KINDS, count=30, num_watched=num_watched)
    check(found, wanted("walking", 30, 40))
    assert seen["walks"] > 15 and not seen["masked"]


@cache
def all_given() -> tuple[list[Sequence], Counter[str]]:
    """On a CPU, where forced tokens are always given."""
    plain, kinds = small_config(num_blocks=512), PLAIN + KINDS + MASKED + FORCED
    return run(LocalExecutor(plain, WALKED, dict(WEIGHTS)), plain, kinds, count=40)


@pytest.mark.parametrize("worth", [0.0, 0.2, 1e9])
def test_forced_tokens_that_are_drawn_are_those_that_would_be_given(
    worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are given, some, and none; what is forced may be spelled in several ways."""
    monkeypatch.setattr(jumps, "WORTH", worth)
    kinds, (expected, given) = PLAIN + KINDS + MASKED + FORCED, all_given()
    few = small_config(num_blocks=24)
    executor, apart = LocalExecutor(few, WALKED, dict(WEIGHTS)), replace(few, device="cuda")
    found, drawn = run(executor, apart, kinds, count=40)
    check(found, expected)
    assert any(s.num_preemptions for s in found)
    if worth > 1:
        assert drawn["masked"] > 1.2 * given["masked"]


def test_what_is_captured_is_nobodys_work() -> None:
    """Before a pass is captured it is run once, between two plans: no row may go on by that."""
    config = small_config(depth=2, max_repeat=8, num_blocks=256)
    executor = PlainExecutor(config, WALKED, WEIGHTS, num_states=2048)
    graphs, known = executor.runner.graphs, set[Any]()

    def prepare(key: Any, work: Any, rest: Any = lambda: None) -> None:
        if key not in known:
            known.add(key)
            rest()
            work()

    vars(graphs)["prepare"] = prepare
    found, _ = run(executor, config, PLAIN + KINDS + MASKED, count=30)
    check(found, wanted("mixed", 30, 40))
    assert len(known) > 3


def test_grammars_without_room_are_given_masks() -> None:
    """Room for a few at a time: those that nobody follows any more make way."""
    expected = wanted("walking", 30, 40)
    config = small_config(depth=2, max_repeat=8, num_blocks=256, max_num_seqs=5)
    executor = PlainExecutor(config, WALKED, WEIGHTS, num_states=40)
    found, seen = run(executor, config, KINDS, count=30)
    check(found, expected)
    assert seen["walks"] > 5 and seen["masked"] > 5
    room = executor.handles.automata
    assert room is not None and not any(room._holders.values())
