"""Structured outputs through LLM: any mix in one batch, valid whenever a row finishes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.errors import InvalidGrammar, InvalidParams
from quire.grammar.matcher import GrammarMatcher
from quire.sampling_params import GuidedDecodingParams
from quire.scheduler.jumps import Jumps
from tests.tiny_llm import tiny_llm

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
}


class Answer(BaseModel):
    yes: bool
    grade: Literal[1, 2, 3]


def constrained(temperature: float = 1.0, **fields: Any) -> SamplingParams:
    own = {"json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace"}
    constraint = StructuredOutputsParams(**{k: v for k, v in fields.items() if k in own})
    rest = {k: v for k, v in fields.items() if k not in own}
    usual = {"max_tokens": 200, "seed": 3, "temperature": temperature}
    return SamplingParams(**{**usual, **rest}, structured_outputs=constraint)


def texts(llm: LLM, params: SamplingParams | list[SamplingParams], **options: Any) -> list[str]:
    many = params if isinstance(params, list) else [params]
    outputs = llm.generate(["Say something."] * len(many), many, use_tqdm=False, **options)
    return [answer.text for output in outputs for answer in output.outputs]


def test_a_schema_is_followed(llm: LLM) -> None:
    params = [constrained(json=PERSON, seed=s) for s in range(8)]
    for text in texts(llm, params):
        jsonschema.validate(json.loads(text), PERSON)


def test_a_pydantic_model_and_json_text_are_schemas_too(llm: LLM) -> None:
    for schema in (Answer, json.dumps(Answer.model_json_schema()), Answer.model_json_schema()):
        (text,) = texts(llm, constrained(json=schema, max_tokens=400))
        Answer.model_validate_json(text)
        assert list(json.loads(text)) == ["yes", "grade"], "no properties beside those named"


def test_regexes_choices_and_grammars_are_followed(llm: LLM) -> None:
    found = texts(
        llm,
        [
            constrained(regex=r"\d{3}-[a-f]{2}"),
            constrained(choice=["yes", "no", "maybe so"]),
            constrained(grammar='start: "a" ("b" | "c")+ "d"', max_tokens=500),
            constrained(grammar='root ::= "x" [0-9] "y"'),
        ],
    )
    assert re.fullmatch(r"\d{3}-[a-f]{2}", found[0])
    assert found[1] in ("yes", "no", "maybe so")
    assert re.fullmatch(r"a[bc]+d", found[2])
    assert re.fullmatch(r"x[0-9]y", found[3])


def test_every_sample_follows_and_they_differ(llm: LLM) -> None:
    found = texts(llm, constrained(regex=r"[a-z]{8}", n=5))
    assert all(re.fullmatch(r"[a-z]{8}", text) for text in found)
    assert len(set(found)) > 1


def test_the_older_spelling_works(llm: LLM) -> None:
    params = SamplingParams(temperature=0, guided_decoding=GuidedDecodingParams(choice=["left"]))
    assert texts(llm, params) == ["left"]


def test_free_rows_beside_constrained_ones_are_as_if_alone(llm: LLM) -> None:
    free = SamplingParams(temperature=1.0, seed=8, max_tokens=12)
    (alone,) = texts(llm, free)
    mixed = texts(llm, [constrained(json=PERSON), free, constrained(choice=["a", "b"]), free])
    assert mixed[1] == mixed[3] == alone


def test_a_bad_schema_costs_its_own_row(llm: LLM) -> None:
    params = [
        constrained(json={"type": "object", "properties": {"x": {"not": {"type": "null"}}}}),
        constrained(choice=["fine"]),
        constrained(regex=r"(?=a)b"),
        constrained(grammar="start: nothing"),
    ]
    outputs = llm.generate(["a"] * 4, params, use_tqdm=False, on_error="return")
    assert [type(o.error) for o in outputs] == [
        InvalidGrammar, type(None), InvalidGrammar, InvalidGrammar,
    ]  # fmt: skip
    assert "'not' at $.properties.x" in str(outputs[0].error)
    assert "prompt 0" in str(outputs[0].error)
    assert outputs[1].outputs[0].text == "fine"


@pytest.mark.parametrize(
    ("question", "num_rows"),  # few rows are asked one by one, many in one call
    [("accept", 3), ("accepted", 12), ("forced", 3)],
)
def test_a_grammar_that_meets_a_fault_costs_its_own_row(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, question: str, num_rows: int
) -> None:
    params = [constrained(json=PERSON, seed=s) for s in range(num_rows)]
    whole = texts(llm, params)
    ask, faulty = getattr(GrammarMatcher, question), list[GrammarMatcher]()

    def asked(self: GrammarMatcher, *given: Any, **more: Any) -> Any:
        if not faulty and self.num_tokens >= 4:
            faulty.append(self)
        if faulty and faulty[0] is self:
            raise LookupError("made up")
        return ask(self, *given, **more)

    monkeypatch.setattr(GrammarMatcher, question, asked)
    outputs = llm.generate(["Say something."] * num_rows, params, use_tqdm=False, on_error="return")
    answers = [output.outputs[0] for output in outputs]
    [failed] = [i for i, answer in enumerate(answers) if answer.finish_reason == "error"]
    assert str(outputs[failed].error).startswith("this row failed while")
    for i, answer in enumerate(answers):
        assert (answer.text == whole[i]) == (i != failed)


def test_values_of_the_wrong_kind_cost_their_own_rows(llm: LLM) -> None:
    """Each of these once ended the whole call."""
    bad: list[dict[str, Any]] = [
        {"json": {"type": "object", "patternProperties": 5}},
        {"json": {"anyOf": [{"$ref": "#/anyOf/²"}]}},
        {"structural_tag": '{"type": "structural_tag", "format": {"type": []}}'},
    ]
    params = [
        SamplingParams(structured_outputs=StructuredOutputsParams(**fields)) for fields in bad
    ]
    params.append(constrained(choice=["fine"]))
    outputs = llm.generate(["a"] * 4, params, use_tqdm=False, on_error="return")
    assert [type(o.error) for o in outputs] == [InvalidGrammar] * 3 + [type(None)]
    assert outputs[3].outputs[0].text == "fine"


# Of two parts, so that it is open unless the engine is told otherwise.
OPEN = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "allOf": [{"properties": {"a": {}, "b": {}}}],
}


@pytest.mark.parametrize(
    "options",
    [
        {
            "structured_outputs_config": {
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
            }
        },
        {
            "guided_decoding_disable_any_whitespace": True,
            "guided_decoding_disable_additional_properties": True,
        },
        {"guided_decoding_backend": "auto:disable-any-whitespace,no-additional-properties"},
    ],
)
def test_the_engines_config_holds_for_every_row(tmp_path: Path, options: dict[str, Any]) -> None:
    with tiny_llm(tmp_path, **options) as made:
        found = texts(made, [constrained(json=OPEN, seed=seed) for seed in range(8)])
    assert set(found) <= {'{"a":1}', '{"a":2}'}


def test_what_is_asked_of_a_backend_is_honoured() -> None:
    asked = "guidance:disable-any-whitespace,no-additional-properties,no-fallback"
    params = GuidedDecodingParams(json_object=True, backend=asked)
    assert params.disable_any_whitespace and params.disable_additional_properties
    with pytest.raises(InvalidParams, match="no-additional-properties behind a :"):
        GuidedDecodingParams(json_object=True, backend="guidance:fast")


def test_a_row_cut_inside_its_grammar_says_so(llm: LLM) -> None:
    outputs = llm.generate(["a"], constrained(json=PERSON, max_tokens=4), use_tqdm=False)
    answer = outputs[0].outputs[0]
    assert answer.finish_reason == "length"
    assert answer.stop_reason == "unfinished_structured_output"


LONG = {
    "type": "object",
    "properties": {
        "a_rather_long_name_that_is_forced": {"const": "and a constant that is forced as well"},
        "another_long_name": {"type": "boolean"},
    },
    "required": ["a_rather_long_name_that_is_forced", "another_long_name"],
    "additionalProperties": False,
}


def test_forced_tokens_cost_no_step_and_change_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [constrained(0.0, json=LONG, disable_any_whitespace=True), constrained(json=LONG)]
    engine = llm._session.engine
    before = engine.num_steps
    jumped = texts(llm, params)
    num_steps = engine.num_steps - before
    monkeypatch.setattr(Jumps, "take", lambda self, drawn: None)
    before = engine.num_steps
    assert texts(llm, params)[0] == jumped[0]
    assert num_steps < 0.6 * (engine.num_steps - before)


def test_stop_strings_logprobs_and_penalties_go_together(llm: LLM) -> None:
    outputs = llm.generate(
        ["a"] * 2,
        [
            constrained(regex=r"[a-z]{4}STOP[a-z]{4}", stop=["STOP"]),
            constrained(regex=r"[a-z]{9}", logprobs=2, repetition_penalty=1.3),
        ],
        use_tqdm=False,
    )
    assert re.fullmatch(r"[a-z]{4}", outputs[0].outputs[0].text)
    assert outputs[0].outputs[0].stop_reason == "STOP"
    answer = outputs[1].outputs[0]
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)


def test_preempted_rows_stay_valid_and_equal(llm: LLM) -> None:
    params = [constrained(json=PERSON, seed=s) for s in range(5)]
    expected = texts(llm, params)
    scheduler = llm._session.engine.scheduler
    schedule, turns = scheduler.schedule, iter(range(10**9))

    def disturbed() -> Any:
        if next(turns) % 3 == 2 and scheduler.num_running > 1:
            scheduler._preemption.make_room()
        return schedule()

    scheduler.schedule = disturbed  # type: ignore[method-assign]
    try:
        before = scheduler.num_preemptions
        assert texts(llm, params) == expected
        assert scheduler.num_preemptions > before + 3
    finally:
        scheduler.schedule = schedule  # type: ignore[method-assign]


def test_two_plans_in_flight_give_the_same_text(llm: LLM, tmp_path: Path) -> None:
    params = [constrained(json=PERSON), constrained(choice=["yes", "no"]), SamplingParams(seed=1)]
    with tiny_llm(tmp_path, async_scheduling=True) as deep:
        assert texts(deep, params) == texts(llm, params)


def test_without_a_tokenizer_it_is_refused(tmp_path: Path) -> None:
    with (
        tiny_llm(tmp_path, skip_tokenizer_init=True, tokenizer=None) as bare,
        pytest.raises(InvalidParams, match="structured_outputs"),
    ):
        bare.generate([[5]], constrained(choice=["a"]), use_tqdm=False)


def test_what_holds_up_all_rows_can_be_done_before_the_first(tmp_path: Path) -> None:
    """llguidance reads the vocabulary under Python's lock; a server has no second for that."""
    with tiny_llm(tmp_path) as made:
        assert "_compiler" not in vars(made._session._guides)
        made._session.prepare_grammars()
        assert made._session._guides._compiler._opened is not None
        assert texts(made, constrained(choice=["fine"])) == ["fine"]


def test_a_stop_id_that_a_grammar_asks_for_is_in_the_text(llm: LLM) -> None:
    end = llm.get_tokenizer().encode(" b")[-1]
    usual: dict[str, Any] = {"temperature": 0.0, "stop_token_ids": [end]}
    asked = [constrained(regex="a b", **usual), constrained(regex="a b", **usual, stop="never")]
    found = llm.generate(["Say something."] * 2, asked, use_tqdm=False)
    assert [output.outputs[0].text for output in found] == ["a b", "a b"]
    assert [output.outputs[0].stop_reason for output in found] == [None, None]
    # Where the text may end before it, it ends it.
    [output] = llm.generate(
        "x", constrained(regex="a( b)?", **usual, logit_bias={end: 100}), use_tqdm=False
    )
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("a", end)


@pytest.mark.parametrize("more", [{}, {"stop": "never"}])
def test_the_end_of_a_grammar_is_no_text_where_end_tokens_are_ignored(
    llm: LLM, more: dict[str, Any]
) -> None:
    ended = llm.get_tokenizer().eos_token_id
    usual: dict[str, Any] = {"ignore_eos": True, "skip_special_tokens": False, **more}
    asked = constrained(regex="a*", **usual, logit_bias={ended: 100})
    [output] = llm.generate("x", asked, use_tqdm=False)
    answer = output.outputs[0]
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [ended], "stop")
    # As it is without a grammar: no end before so many tokens.
    [output] = llm.generate("x", constrained(regex="a*", **usual, min_tokens=4), use_tqdm=False)
    assert set(output.outputs[0].text) == {"a"}
