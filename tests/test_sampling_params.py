"""SamplingParams and its kin: every rule has a value that breaks it and one that keeps it."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidParams, NotSupported, QuireError, QuireWarning, UnknownOption
from quire.inputs.known_tokens import check_vocabulary
from quire.params.pooling import PoolingParams
from quire.params.rules import PARAMS_STATUS
from quire.sampling_params import (
    BeamSearchParams,
    GuidedDecodingParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    StructuredOutputsParams,
)
from quire.session.engine_args import EngineArgs

NAN, INF = float("nan"), float("inf")
BAD_LINES: Any = (7, [], [[], []], [1, 2], [[1.5]], [[-2]], [[2**31]], [["3"]], np.zeros((2, 3)))

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 16385}),
    ("n", {"n": 1.0}),
    ("n", {"n": "2"}),
    ("n", {"n": True}),
    ("n", {"n": 2, "temperature": 0.0}),
    ("presence_penalty", {"presence_penalty": 2.01}),
    ("presence_penalty", {"presence_penalty": -2.01}),
    ("frequency_penalty", {"frequency_penalty": NAN}),
    ("frequency_penalty", {"frequency_penalty": 3}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": -1.0}),
    ("repetition_penalty", {"repetition_penalty": INF}),
    ("repetition_penalty", {"repetition_penalty": NAN}),
    ("repetition_penalty", {"repetition_penalty": 1e-320}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": NAN}),
    ("temperature", {"temperature": INF}),
    ("temperature", {"temperature": None}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": NAN}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 5.0}),
    ("min_p", {"min_p": -0.01}),
    ("min_p", {"min_p": 1.01}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": 1.5}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": [1]}),
    ("stop", {"stop": 7}),
    ("stop", {"stop": ["\ud800"]}),
    ("stop", {"stop": ["a"], "detokenize": False}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [True]}),
    ("stop_token_ids", {"stop_token_ids": [2**31]}),
    ("stop_token_ids", {"stop_token_ids": 5}),
    ("stop_token_ids", {"stop_token_ids": "12"}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -5}),
    ("max_tokens", {"max_tokens": 16.0}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 17}),
    ("logprobs", {"logprobs": -2}),
    ("logprobs", {"logprobs": "all"}),
    ("prompt_logprobs", {"prompt_logprobs": -2}),
    ("logprob_token_ids", {"logprob_token_ids": list(range(129))}),
    ("logprob_token_ids", {"logprob_token_ids": [-1]}),
    ("logprobs", {"logprob_token_ids": [1, 2], "logprobs": 3}),
    *(("prompt_logprob_token_ids", {"prompt_logprob_token_ids": bad}) for bad in BAD_LINES),
    ("prompt_logprob_start", {"prompt_logprob_start": -1, "prompt_logprob_token_ids": [[1]]}),
    ("ignore_eos", {"ignore_eos": 1}),
    ("flat_logprobs", {"flat_logprobs": None}),
    ("detokenize", {"detokenize": "no"}),
    ("skip_special_tokens", {"skip_special_tokens": 0}),
    ("spaces_between_special_tokens", {"spaces_between_special_tokens": 0}),
    ("include_stop_str_in_output", {"include_stop_str_in_output": 0}),
    ("skip_clone", {"skip_clone": 0}),
    ("output_kind", {"output_kind": 2}),
    ("structured_outputs", {"structured_outputs": {"regex": "a"}}),
    ("guided_decoding", {"guided_decoding": "json"}),
    (
        "guided_decoding",
        {
            "guided_decoding": GuidedDecodingParams(regex="a"),
            "structured_outputs": StructuredOutputsParams(regex="a"),
        },
    ),
    ("logit_bias", {"logit_bias": {1: NAN}}),
    ("logit_bias", {"logit_bias": {1: -INF}}),
    ("logit_bias", {"logit_bias": {"1": 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": [1]}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    *(("allowed_token_ids", {"allowed_token_ids": ids}) for ids in (["a"], np.array(3))),
    ("extra_args", {"extra_args": [1]}),
    ("routed_experts_prompt_start", {"routed_experts_prompt_start": -1}),
    ("bad_words", {"bad_words": [""]}),
    ("bad_words", {"bad_words": "word"}),
    ("skip_reading_prefix_cache", {"skip_reading_prefix_cache": 1}),
    ("thinking_token_budget", {"thinking_token_budget": True}),
    ("thinking_token_budget", {"thinking_token_budget": 2.0}),
    ("thinking_token_budget", {"thinking_token_budget": -2}),
    ("repetition_detection", {"repetition_detection": 3}),
    ("best_of", {"n": 3, "best_of": 2}),
    ("logits_processors", {"logits_processors": ["not callable"]}),
    ("logits_processors", {"logits_processors": print}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
]


@pytest.mark.parametrize(("parameter", "fields"), BROKEN, ids=lambda v: str(v)[:60])
def test_a_broken_rule_names_the_parameter_and_the_value(
    parameter: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidParams) as caught:
        SamplingParams(**fields)
    assert caught.value.parameter == parameter
    assert parameter in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("parameter", "fields"), BROKEN, ids=lambda v: str(v)[:60])
def test_assigning_a_broken_value_is_found_at_the_door(
    parameter: str, fields: dict[str, Any]
) -> None:
    params = SamplingParams()
    for name, value in fields.items():
        setattr(params, name, value)
    with pytest.raises(InvalidParams) as caught:
        params.checked_copy()
    assert caught.value.parameter == parameter


NUMERIC = [
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p"),
    *("top_k", "min_p", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"),
    *("routed_experts_prompt_start", "thinking_token_budget", "best_of", "truncate_prompt_tokens"),
]
ODD = [NAN, INF, -INF, -1, 0, 2**31, 2**63, 10**400, 10**5000, 1e30, 1e-320, -0.0, True, "1", None]
ODD += [b"1", [], {}, object(), 1j, np.float32(0.5), np.int64(3), np.array([1.0]), np.bool_(True)]


@pytest.mark.filterwarnings("ignore::quire.errors.QuireWarning")
@pytest.mark.parametrize("name", NUMERIC)
def test_an_odd_number_gives_a_typed_error_or_valid_params(name: str) -> None:
    for value in ODD:
        try:
            params = SamplingParams(**{name: value})
        except InvalidParams as error:
            assert error.parameter in (name, "min_tokens"), type(value)
            continue
        stored = getattr(params, name)
        assert stored is None or type(stored) in (int, float), type(value)
        try:
            copied = params.checked_copy()
        except NotSupported:
            continue
        assert copied == copied.checked_copy(), type(value)
        assert copied.top_k < 2**31
        assert copied.min_tokens < 2**31


@given(
    st.sampled_from(SamplingParams.__struct_fields__),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=3)
        | st.binary(max_size=2),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner),
        max_leaves=4,
    ),
)
def test_any_value_in_any_field_is_taken_or_refused_by_type(name: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuireWarning)
        with contextlib.suppress(QuireError):
            SamplingParams(**{name: value}).checked_copy()


@pytest.mark.parametrize(
    ("made", "name", "meant"),
    [
        (SamplingParams, "temprature", "'temperature'"),
        (SamplingParams, "use_beam_search", "beam_search"),
        (SamplingParams, "max_new_tokens", "max_tokens"),
        (SamplingParams, "guided_json", "structured_outputs"),
        (SamplingParams, "zzz", "docs/api.md"),
        (PoolingParams, "dimension", "'dimensions'"),
        (EngineArgs, "max_modl_len", "'max_model_len'"),
    ],
)
def test_an_unknown_parameter_is_a_type_error_with_the_way_out(
    made: Any, name: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=f"{made.__name__} takes no '{name}'.*{meant}") as caught:
        made(**{name: 1})
    assert isinstance(caught.value, UnknownOption) and caught.value.parameter == name


KNOWN = (
    "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p "
    "seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs "
    "logprob_token_ids flat_logprobs detokenize skip_special_tokens "
    "spaces_between_special_tokens include_stop_str_in_output output_kind skip_clone "
    "structured_outputs logit_bias allowed_token_ids extra_args routed_experts_prompt_start "
    "bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection"
)


def test_fields_and_positions_are_those_scripts_know() -> None:
    known = KNOWN.split()
    older = ["best_of", "guided_decoding", "logits_processors", "truncate_prompt_tokens"]
    later = ["stream_interval", "watermarking", "prompt_logprob_token_ids"]
    later += ["prompt_logprob_start", "trace_decode_token_ids"]
    assert list(SamplingParams.__struct_fields__) == known + older + later
    assert set(PARAMS_STATUS) == set(known + older + later)
    params = SamplingParams(2, 0.1, 0.2, 1.1, 0.5, 0.9, 40, 0.05, 7, "x")
    assert (params.n, params.temperature, params.top_k, params.seed) == (2, 0.5, 40, 7)


def test_how_tokens_are_drawn_is_told() -> None:
    assert SamplingParams(temperature=0, seed=3).sampling_type is SamplingType.GREEDY
    assert SamplingParams().sampling_type is SamplingType.RANDOM
    assert SamplingParams(seed=0).sampling_type is SamplingType.RANDOM_SEED
    assert SamplingParams(stop_token_ids=[7, 3, 7]).all_stop_token_ids == {3, 7}


def test_a_tiny_temperature_is_raised_with_a_warning_at_the_callers_line() -> None:
    with pytest.warns(QuireWarning, match="raised to 0.01") as caught:
        params = SamplingParams(temperature=1e-6)
    assert params.temperature == 0.01
    assert caught[0].filename == __file__


def test_zero_temperature_is_greedy_and_needs_no_warning() -> None:
    assert SamplingParams(temperature=0).temperature == 0.0
    assert str(SamplingParams(temperature=-0.0).temperature) == "0.0"


def test_no_cap_on_biases_bans_and_stop_ids() -> None:
    many = list(range(5000))
    params = SamplingParams(
        logit_bias=dict.fromkeys(many, -1e30),
        allowed_token_ids=many,
        stop_token_ids=many,
        bad_words=[f"word{i}" for i in many],
    ).checked_copy()
    assert params.logit_bias is not None and len(params.logit_bias) == 5000
    check_vocabulary(params, 5000)


def test_the_checked_copy_shares_nothing_with_the_callers_object() -> None:
    stops, bias, ids = ["a"], {1: 2.0}, [4]
    mine = SamplingParams(stop=stops, logit_bias=bias, allowed_token_ids=ids, bad_words=["b"])
    theirs = mine.checked_copy()
    before = copy.deepcopy(theirs)
    stops.append("x")
    bias[9] = 1.0
    ids.append(9)
    assert isinstance(mine.stop, list) and mine.bad_words is not None
    mine.stop.append("y")
    mine.bad_words.append("z")
    mine.temperature = 0.5
    assert theirs == before


def test_greedy_copies_have_one_form_and_the_original_keeps_its_own() -> None:
    params = SamplingParams(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1)
    assert params.checked_copy() == SamplingParams(temperature=0.0)
    assert (params.top_p, params.top_k, params.min_p) == (0.5, 3, 0.1)


REFUSED: list[dict[str, Any]] = [
    {"n": 2, "best_of": 3},
    {"watermarking": True},
    {"trace_decode_token_ids": [5, 6]},
]


@pytest.mark.parametrize("fields", REFUSED, ids=lambda v: next(reversed(v)))
def test_what_is_not_built_is_refused_at_the_door_with_a_way_out(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    name = next(reversed(fields))
    with pytest.raises(NotSupported, match=name) as caught:
        params.checked_copy()
    assert PARAMS_STATUS[name].why in str(caught.value)


def test_every_refused_parameter_has_a_case() -> None:
    refused = {name for name, status in PARAMS_STATUS.items() if status.kind == "refused"}
    assert refused == {next(reversed(fields)) for fields in REFUSED}


def test_refused_parameters_that_ask_for_nothing_pass() -> None:
    SamplingParams(
        n=2,
        best_of=2,
        logits_processors=[],
        repetition_detection=RepetitionDetectionParams(),
        thinking_token_budget=-1,
    ).checked_copy()


@pytest.mark.parametrize(
    ("name", "value"),
    [("skip_clone", True), ("routed_experts_prompt_start", 3), ("stream_interval", 5)],
)
def test_a_moot_parameter_warns_with_the_reason(name: str, value: Any) -> None:
    assert PARAMS_STATUS[name].kind == "moot"
    with pytest.warns(QuireWarning, match=name) as caught:
        SamplingParams(**{name: value}).checked_copy()
    assert PARAMS_STATUS[name].why in str(caught[0].message)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"stop_token_ids": [100]}, "stop_token_ids"),
        ({"allowed_token_ids": [1, 100]}, "allowed_token_ids"),
        ({"logprob_token_ids": [100]}, "logprob_token_ids"),
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"prompt_logprob_token_ids": [[1], [5] * 101]}, "prompt_logprob_token_ids"),
        ({"logprobs": 101}, "logprobs"),
        ({"prompt_logprobs": 2**63}, "prompt_logprobs"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidParams, match="100") as caught:
        check_vocabulary(SamplingParams(**fields), 100)
    assert caught.value.parameter == parameter


def test_ids_inside_the_vocabulary_pass() -> None:
    params = SamplingParams(
        stop_token_ids=[99], allowed_token_ids=[0], logit_bias={99: 1}, logprobs=-1
    )
    check_vocabulary(params, 100)


def test_max_logprobs_bounds_what_a_request_may_ask_for() -> None:
    check_vocabulary(SamplingParams(logprobs=20), 100, max_logprobs=20)
    for wanted in (21, -1):
        with pytest.raises(InvalidParams, match="at most 20"):
            check_vocabulary(SamplingParams(logprobs=wanted), 100, max_logprobs=20)


def test_from_optional_reads_none_as_the_default_and_bounds_the_bias() -> None:
    params = SamplingParams.from_optional(
        n=None, temperature=None, top_p=None, max_tokens=None, logit_bias={"5": 1000, 6: -1000}
    )
    assert (params.n, params.temperature, params.top_p, params.max_tokens) == (1, 1.0, 1.0, None)
    assert params.logit_bias == {5: 100.0, 6: -100.0}
    for bias in ({"five": 1}, [1], {5: "x"}):
        with pytest.raises(InvalidParams):
            SamplingParams.from_optional(logit_bias=bias)


def test_clone_and_repr() -> None:
    params = SamplingParams(temperature=0.5, stop=["x"], logit_bias={1: 2.0})
    twin = params.clone()
    assert twin == params and twin.stop is not params.stop
    assert copy.copy(params) == params
    assert repr(params) == "SamplingParams(temperature=0.5, stop=['x'], logit_bias={1: 2.0})"
    assert repr(SamplingParams()) == "SamplingParams()"


def test_num_logprobs_counts_the_token_ids_too() -> None:
    assert SamplingParams().num_logprobs is None
    assert SamplingParams(logprobs=0).num_logprobs == 0
    assert SamplingParams(logprob_token_ids=[4, 5]).num_logprobs == 2


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"regex": "a", "grammar": "b"},
        {"choice": []},
        {"choice": "ab"},
        {"grammar": ""},
        {"regex": ""},
        {"json": ""},
        {"json": "{not json"},
        {"json": {"a": {1, 2}}},
        {"json": True},
        {"json_object": False},
        {"regex": "a", "disable_any_whitespace": 1},
    ],
    ids=str,
)
def test_structured_outputs_take_exactly_one_valid_constraint(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        StructuredOutputsParams(**fields)


def test_structured_outputs_that_are_valid() -> None:
    for fields in (
        {"json": {"type": "object"}},
        {"json": '{"type": "object"}'},
        {"json_object": True},
        {"choice": ["a"]},
    ):
        assert not StructuredOutputsParams(**fields).all_constraints_none()
    assert GuidedDecodingParams.from_optional() is None


def test_the_backend_of_a_structured_output_has_no_effect_and_that_is_said() -> None:
    with pytest.warns(QuireWarning, match="backend='xgrammar' has no effect"):
        older = GuidedDecodingParams.from_optional(regex="a", backend="xgrammar")
    assert older is not None and older.regex == "a"
    with pytest.warns(QuireWarning, match="backend='outlines' has no effect"):
        StructuredOutputsParams(choice=["a"], backend="outlines")
    StructuredOutputsParams(choice=["a"], backend="auto")


@pytest.mark.parametrize(
    "sizes", [(-1, 0, 0), (2, 3, 2), (2, 1, 1), (1.5, 0, 0), (2, True, 2)], ids=str
)
def test_repetition_detection_has_rules(sizes: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidParams):
        RepetitionDetectionParams(*sizes)


@pytest.mark.parametrize(
    "fields",
    [
        {"beam_width": 0},
        {"max_tokens": 0},
        {"temperature": NAN},
        {"length_penalty": INF},
        {"ignore_eos": 1},
        {"early_stopping": "sometimes"},
        {"n": 0},
        {"n": 5},
        {"structured_outputs": "x"},
    ],
    ids=str,
)
def test_beam_search_has_rules(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        BeamSearchParams(**{"beam_width": 4, "max_tokens": 8, **fields})


def test_beam_search_signature() -> None:
    params = BeamSearchParams(4, 8, True, 0.5, 2.0, True, None, early_stopping="never", n=2)
    assert (params.beam_width, params.length_penalty, params.n) == (4, 2.0, 2)
    with pytest.raises(TypeError):
        BeamSearchParams(4, 8, True, 0.5, 2.0, True, None, False)  # type: ignore[call-arg]


def test_output_kinds_are_taken() -> None:
    for kind in RequestOutputKind:
        assert SamplingParams(output_kind=kind).checked_copy().output_kind is kind


def test_the_older_spelling_becomes_structured_outputs_in_the_copy() -> None:
    params = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["a", "b"]))
    copied = params.checked_copy()
    assert copied.guided_decoding is None and copied.structured_outputs is not None
    assert copied.structured_outputs.choice == ["a", "b"]
    assert params.guided_decoding is not None
