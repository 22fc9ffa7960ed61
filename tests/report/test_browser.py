"""The page in a real browser: what is seen, found, compared, and what never runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import Opened
from tests.report.pages import harmful_run, page_of, scored_run

OpenPage = Callable[..., Opened]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of one run."""
    folder = tmp_path_factory.mktemp("one")
    return page_of(folder, scored_run(folder, 300))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of one run with ten thousand rows."""
    folder = tmp_path_factory.mktemp("large")
    return page_of(folder, scored_run(folder, 10_000))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs side by side."""
    folder = tmp_path_factory.mktemp("two")
    runs = [scored_run(folder, 300, seed=s, name=f"run-{s}.jsonl") for s in (1, 2)]
    return page_of(folder, *runs)


# Each two of kind, width and scheme meet once.
@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [("one", 1440, "light"), ("one", 390, "dark"), ("two", 1440, "dark"), ("two", 390, "light")],
)
def test_the_page_opens_offline_without_a_complaint(
    kind: str, width: int, scheme: str, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    opened = open_page(path, scheme=scheme, width=width)
    page = opened.page
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".chart canvas").count() == (4 if kind == "one" else 8)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "blob:"))] == []


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("one", "light"),
        ("two", "dark"),
        pytest.param("one", "dark", marks=pytest.mark.long),
        pytest.param("two", "light", marks=pytest.mark.long),
    ],
)
def test_the_page_is_accessible(
    kind: str, scheme: str, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    opened = open_page(request.getfixturevalue(kind), scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    opened.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found = opened.page.evaluate("axe.run()")
    described = [(v["id"], [n["html"][:160] for n in v["nodes"][:3]]) for v in found["violations"]]
    assert described == []
    assert len(found["passes"]) > 20  # it did look


def test_ten_thousand_rows_scroll_and_search_at_once(large: Path, open_page: OpenPage) -> None:
    opened = open_page(large)
    page = opened.page
    assert opened.count() == "10,000 rows"
    assert page.locator(".list-body .row").count() < 60
    page.evaluate("document.querySelector('.list').scrollTop = 1e9")
    page.locator(".list-body .id", has_text="9999").wait_for()
    assert page.locator(".list-body .row").count() < 60
    page.get_by_role("searchbox").fill("what is 4242 +")
    page.locator(".count", has_text="1 of 10,000 rows").wait_for()
    assert page.locator(".detail mark").first.text_content() == "What is 4242 +"
    # The first search makes the texts to search in; even that is not felt.
    spent = page.evaluate(
        """() => { const rows = new quire.Rows();
          return rows.load(quire.data.rows.chunks, () => {}).then(() => {
            const began = performance.now();
            const found = rows.select({ words: "what is 9998 +", tests: [], order: null });
            return [performance.now() - began, found.length]; }); }"""
    )
    assert spent[1] == 1
    assert spent[0] < 1000


def test_rows_are_filtered_by_ending_score_and_column(large: Path, open_page: OpenPage) -> None:
    opened = open_page(large)
    page = opened.page

    def choose(label: str, option: str) -> str:
        page.get_by_label(label, exact=True).select_option(label=option)
        return opened.count()

    assert choose("Every ending", "Failed") == "250 of 10,000 rows"
    assert "ValueError" in page.locator(".detail .text.error").text_content()
    assert choose("Every ending", "Every ending") == "10,000 rows"
    assert choose("Every subject", "money") == "3,333 of 10,000 rows"
    wrong = choose("Every exact_match,strict-match", "Wrong (0)")
    assert wrong.endswith("of 10,000 rows") and wrong != "3,333 of 10,000 rows"
    assert page.locator(".detail td.num").first.text_content() == "0"
    assert choose("Every exact_match,strict-match", "In between") == "0 of 10,000 rows"
    assert "No row to show" in page.locator(".detail").text_content()


def test_a_row_is_shown_whole_and_reached_by_keys(one: Path, open_page: OpenPage) -> None:
    page = open_page(one).page
    detail = page.locator(".detail")
    assert "Row 0" in detail.text_content()
    assert "What is 0 + 0?" in detail.locator(".text").first.text_content()
    page.get_by_role("grid").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert "Row 1" in detail.text_content()
    page.get_by_text("characters before this").click()
    assert detail.locator(".text").first.text_content().startswith("Question: What is 1 + 1?")
    page.keyboard.press("Tab")
    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    assert "Row 299" in detail.text_content()
    assert "Expected" in detail.text_content()


def test_two_runs_show_what_changed(two: Path, open_page: OpenPage) -> None:
    opened = open_page(two)
    page = opened.page
    assert page.locator("#comparison table").first.locator("tbody tr").count() == 2
    page.get_by_label("Every exact_match,strict-match", exact=True).select_option(label="Worse")
    assert opened.count().endswith("of 300 rows")
    detail = page.locator(".detail")
    gone, new = detail.locator("del").all_text_contents(), detail.locator("ins").all_text_contents()
    assert gone and new and gone != new
    assert page.locator(".list-body .delta-bad").first.text_content() == "-1"
    page.get_by_label("Every answer", exact=True).select_option(label="Same answers")
    assert opened.count() == "0 of 300 rows"


def test_the_word_diff_loses_nothing(two: Path, open_page: OpenPage) -> None:
    page = open_page(two).page
    chance = random.Random(7)
    words = ["one", "two", " ", "\n", "three,", "naïve", "日本", "🙂", "."]

    def text() -> str:
        return "".join(chance.choice(words) for _ in range(chance.randrange(40)))

    pairs = [(text(), text()) for _ in range(200)] + [("", ""), ("a", ""), ("", "b")]
    pairs.append((" ".join(map(str, range(3000))), " ".join(map(str, range(3000, 6000)))))
    found = page.evaluate("(pairs) => pairs.map(([a, b]) => quire.wordDiff(a, b))", pairs)
    for (before, after), parts in zip(pairs, found, strict=True):
        assert "".join(text for kind, text in parts if kind != "new") == before
        assert "".join(text for kind, text in parts if kind != "gone") == after
    same = page.evaluate("quire.wordDiff('the red cat sat', 'the blue cat sat')")
    assert same == [["same", "the "], ["gone", "red"], ["new", "blue"], ["same", " cat sat"]]


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_in_the_data_ever_runs(times: int, tmp_path: Path, open_page: OpenPage) -> None:
    run = harmful_run(tmp_path)
    opened = open_page(page_of(tmp_path, *[run] * times))
    page = opened.page
    for number in range(7):
        page.locator(".list-body .row").nth(number).click()
        assert f"Row {number}" in page.locator(".detail").text_content()
    assert "<img src=x onerror" in page.locator("body").text_content()  # as text
    assert page.evaluate("window.harmed") is None
    assert page.locator("img").count() == 0
    assert page.locator("script:not([type])").count() == 8  # ours
    assert opened.complaints == []


def test_the_policy_stops_what_is_not_ours(one: Path, open_page: OpenPage) -> None:
    opened = open_page(one)
    opened.page.evaluate(
        """() => { const script = document.createElement("script");
          script.textContent = "window.harmed = 1"; document.body.append(script); }"""
    )
    assert opened.page.evaluate("window.harmed") is None
    assert any("Content Security Policy" in text for text in opened.complaints)


def test_the_reader_may_choose_the_theme(one: Path, open_page: OpenPage) -> None:
    page = open_page(one).page
    background = "getComputedStyle(document.body).backgroundColor"
    light: Any = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(background) != light


def test_the_summary_needs_no_javascript(one: Path, open_page: OpenPage) -> None:
    page = open_page(one, javascript=False).page
    text = page.locator("body").inner_text()
    assert "300" in text and "quire run" in text and "exact_match,strict-match" in text
    assert "needs JavaScript" in text
