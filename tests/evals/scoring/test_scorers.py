"""Each scorer on answers a model may really give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quire.errors import InvalidOption
from quire.evals.scoring import choices, match, text
from quire.evals.scoring.function import FunctionFailed, load_function
from quire.evals.scoring.json_validity import json_valid
from quire.evals.scoring.named import DESCRIPTIONS, ScorerOptions, scorers_by_name
from quire.evals.scoring.scorer import Answer, Scorer, ScorerFailed
from quire.evals.tasks.evaluate import NAMES


def value(scorer: Scorer, answer: str, truth: object = None, **row: object) -> float | None:
    verdict = scorer.score(Answer(answer, truth, row))
    return None if verdict is None else verdict.value


def test_exact_match_ignores_only_the_spaces_around() -> None:
    assert value(match.exact(), " Paris\n", "Paris") == 1
    assert value(match.exact(), "paris", "Paris") == 0
    assert value(match.exact(), "Lyon", ["Paris", "Lyon"]) == 1
    assert value(match.exact(), "18", 18.0) == 1
    assert value(match.exact(), "anything", None) is None


def test_normalised_match_ignores_case_punctuation_and_articles() -> None:
    assert value(match.normalised(), "The Eiffel Tower!", "eiffel tower") == 1
    assert value(match.normalised(), "Eiffel's tower", "eiffel tower") == 0


def test_extraction_takes_the_first_group_that_matched() -> None:
    pattern = re.compile(r"answer is (\w+)|= (\d+)")
    assert text.extract(pattern, "so 2 + 2 = 4, the answer is four") == "4"
    assert text.extract(pattern, "so 2 + 2 = 4, the answer is four", last=True) == "four"
    assert text.extract(re.compile(r"\d+"), "none") is None
    extracted = match.exact(pattern).score(Answer("no idea", "4"))
    assert extracted is not None
    assert (extracted.value, extracted.read) == (0, "[invalid]")


@pytest.mark.parametrize(
    ("answer", "strict", "flexible"),
    [
        ("She has 9.\n#### 18", 1, 1),
        ("#### 18.", 1, 1),
        ("#### $18", 0, 1),  # the strict reading wants a digit, a sign or a stop
        ("It is 18 dollars, so 18", 0, 1),
        ("18 eggs, of which 3 are eaten", 0, 0),  # the last number counts
        ("#### 18\n#### 19", 1, 0),  # the first match counts, and the last number
        ("nothing", 0, 0),
        ("#### 1,8", 1, 1),
        ("#### 18.0", 0, 0),
        ("-18", 0, 0),
    ],
)
def test_numbers_are_read_as_gsm8k_is(answer: str, strict: float, flexible: float) -> None:
    truth = "16 - 3 - 4 = <<16-3-4=9>>9\n9 * 2 = <<9*2=18>>18\n#### 18"
    assert value(match.number_strict(), answer, truth) == strict
    assert value(match.number_flexible(), answer, truth) == flexible
    assert value(match.number_flexible(), answer, "18") == flexible


def test_f1_is_the_overlap_of_words() -> None:
    assert value(match.f1(), "the cat sat", "a cat sat down") == pytest.approx(0.8)
    assert value(match.f1(), "dog", ["cat", "dog"]) == 1
    assert value(match.f1(), "", "cat") == 0


def test_the_most_likely_choice_counts_and_length_may_be_taken_out() -> None:
    answer = Answer("", 1, {}, (("no", -3.0), ("certainly not", -4.0)))
    plain, per_character = choices.acc().score(answer), choices.acc_norm().score(answer)
    assert plain is not None and per_character is not None
    assert (plain.value, plain.read) == (0, "no")
    assert (per_character.value, per_character.read) == (1, "certainly not")
    assert choices.acc().score(Answer("generated", 1)) is None


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ("B", 1),
        ("(C) because", 2),
        ("The answer is: **D**.", 3),
        ("Answer: A", 0),
        ("I think it is the red one", 1),
        ("red or blue", None),
        ("Because of gravity", None),
        ("", None),
    ],
)
def test_a_choice_is_read_out_of_text(said: str, chosen: int | None) -> None:
    scorer = choices.ChosenLetter("colours")
    for right in range(4):
        got = value(scorer, said, right, colours=["green", "red", "blue", "a lilac"])
        assert got == float(right == chosen)


def test_a_truth_may_be_a_number_a_letter_or_the_text() -> None:
    options = ["cat", "dog"]
    assert [choices.index_of(t, options) for t in (1, "B", "dog", 1.0, "1")] == [1] * 5
    assert [choices.index_of(t, options) for t in (2, "C", "cow", None, True)] == [None] * 5
    assert choices.index_of("1" * 5000, options) is None


def test_a_choice_beyond_the_letters_is_read_by_its_text() -> None:
    many = [f"number {i} of them" for i in range(40)]
    scorer = choices.ChosenLetter("options")
    assert value(scorer, "It is number 33 of them.", 33, options=many) == 1
    assert value(scorer, "It is number 33 of them.", 3, options=many) == 0


def test_json_validity(tmp_path: Path) -> None:
    plain = json_valid()
    assert value(plain, '{"a": 1}') == 1
    assert value(plain, '```json\n{"a": 1}\n```') == 1
    assert value(plain, '{"a": NaN}') == 0
    assert value(plain, "[" * 100_000) == 0
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "required": ["a"]}))
    scorer = json_valid(schema)
    assert value(scorer, '{"a": 1}') == 1
    wrong = scorer.score(Answer("{}"))
    assert wrong is not None and wrong.value == 0 and "'a' is a required" in (wrong.reason or "")
    for nonsense in ('{"type": "nonsense"}', "5", "[1]", "{"):
        schema.write_text(nonsense)
        with pytest.raises(InvalidOption, match="holds no JSON schema"):
            json_valid(schema)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"$ref": "#"}, "{}"),
        ({"multipleOf": 0.1}, "1" + "0" * 400),
    ],
)
def test_a_schema_that_cannot_be_applied_costs_the_row_its_score(
    tmp_path: Path, schema: dict[str, object], answer: str
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(ScorerFailed, match="the schema cannot be applied"):
        json_valid(tmp_path / "schema.json").score(Answer(answer))


def test_a_schema_that_points_elsewhere_fetches_nothing(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"$ref": "http://127.0.0.1:9/other.json"}))
    with pytest.raises(InvalidOption, match="refers to 'http://127.0.0.1:9/other.json'"):
        json_valid(schema).score(Answer("{}"))


def test_a_function_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def short(output, row):\n"
        "    if row['limit'] is None: return None\n"
        "    if row['limit'] < 0: raise ValueError('negative')\n"
        "    return len(output) <= row['limit']\n"
        "def words(output, row): return 'many'\n"
        "import numpy\n"
        "def first(output, row): return numpy.array(output) == 'abc'\n"
    )
    scorer = load_function(f"{file}:short")
    assert scorer.name == "short"
    assert value(scorer, "abc", limit=3) == 1
    assert value(scorer, "abcd", limit=3) == 0
    assert value(scorer, "abcd", limit=None) is None
    with pytest.raises(FunctionFailed, match="short raised ValueError: negative"):
        value(scorer, "abcd", limit=-1)
    assert value(load_function(f"{file}:first"), "abc") == 1
    with pytest.raises(FunctionFailed, match="returned 'many'"):
        value(load_function(f"{file}:words"), "a")
    with pytest.raises(InvalidOption, match="no function 'long'"):
        load_function(f"{file}:long")
    with pytest.raises(InvalidOption, match="there is no file"):
        load_function(f"{tmp_path}/other.py:short")
    for broken in ("def short(:", "import no_such_module", "1 / 0"):
        file.write_text(broken)
        with pytest.raises(InvalidOption, match="the file cannot be loaded"):
            load_function(f"{file}:short")


def test_scorers_come_by_name_and_a_slip_is_pointed_out() -> None:
    made = scorers_by_name(["number", "f1"], ScorerOptions())
    assert [s.name for s in made] == [
        "exact_match,strict-match",
        "exact_match,flexible-extract",
        "f1",
    ]
    for name in DESCRIPTIONS.keys() - {"regex", "judge"}:
        assert scorers_by_name([name], ScorerOptions())
    with pytest.raises(InvalidOption, match="Did you mean 'exact'"):
        scorers_by_name(["exat"], ScorerOptions())
    with pytest.raises(InvalidOption, match="needs --extract"):
        scorers_by_name(["regex"], ScorerOptions())
    with pytest.raises(InvalidOption, match="the same metric"):
        scorers_by_name(["exact", "regex"], ScorerOptions(extract="x"))
    with pytest.raises(InvalidOption, match="regular expression"):
        scorers_by_name(["regex"], ScorerOptions(extract="("))


def test_the_page_about_scoring_names_every_scorer_and_task() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scoring.md").read_text(encoding="utf-8")
    assert [name for name in (*DESCRIPTIONS, *NAMES) if f"`{name}`" not in page] == []
