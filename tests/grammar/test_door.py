"""The door: whatever a row holds, it is followed or it is that row's own InvalidRequest."""

from __future__ import annotations

import pytest

from quire.errors import InvalidGrammar, InvalidParams, InvalidRequest
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.door import errors_as_refusals
from quire.jobs.child.requests import sampling_params
from quire.params.structured import StructuredOutputsParams
from tests.grammar.hostile import hostile


def test_hostile_values_are_refused_or_followed_and_nothing_else(compiler: GrammarCompiler) -> None:
    num_followed = num_refused = 0
    faults = []
    for fields in hostile():
        try:
            compiler.compile(StructuredOutputsParams(**fields)).matcher()
            num_followed += 1
        except InvalidRequest as error:
            num_refused += 1
            if "fault of quire" in str(error) or "MiB" in str(error):
                faults.append((fields, str(error)))
    assert faults == []  # the door held, but what came to it should have been refused before
    assert num_refused >= 700
    assert num_followed >= 200


@pytest.mark.parametrize("wanted", [5, "json", [{}], True, {"json": 5}, {"no": 1}, {}])
def test_what_a_jobs_row_holds_is_refused_and_never_dropped(wanted: object) -> None:
    with pytest.raises(InvalidParams):
        sampling_params({"structured_outputs": wanted})


class Panic(BaseException):
    """As a panic of an extension looks from Python: not even an Exception."""


@pytest.mark.parametrize("fault", [Panic("at the disco"), RecursionError("deep"), MemoryError()])
def test_what_is_not_meant_becomes_the_rows_error(fault: BaseException) -> None:
    said = f"regex: .*{type(fault).__name__}"
    with pytest.raises(InvalidGrammar, match=said) as caught, errors_as_refusals("regex"):
        raise fault
    assert caught.value.parameter == "regex"
    assert caught.value.__cause__ is fault


@pytest.mark.parametrize("ours", [KeyboardInterrupt(), SystemExit(2), InvalidGrammar("meant")])
def test_what_is_meant_passes(ours: BaseException) -> None:
    with pytest.raises(type(ours)) as caught, errors_as_refusals("regex"):
        raise ours
    assert caught.value is ours


def test_a_fault_while_compiling_is_the_rows_too(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(*_: object) -> None:
        raise Panic("inside")

    monkeypatch.setattr("quire.grammar.compiler.read_source", panics)
    with pytest.raises(InvalidGrammar, match="could not be compiled, by a fault"):
        compiler.compile(StructuredOutputsParams(choice=["never compiled before"]))
