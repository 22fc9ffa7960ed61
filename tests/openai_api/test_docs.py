"""docs/server.md has the tables that the code uses."""

from __future__ import annotations

from docs.render_server import PAGE, rendered


def test_the_page_is_as_the_code_has_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rendered(page), "run python -m docs.render_server"
