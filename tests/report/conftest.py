"""A real browser for the pages: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


# For one file: as long as Playwright is there an event loop runs in this thread, and tests of
# other files could not start theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or a skip that says how to get it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no chromium here; scripts/browser installs Debian's")
    with api.sync_playwright() as playwright:
        # Root has no sandbox of its own to start in.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page that is open, and everything it complained about or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def count(self) -> str:
        return str(self.page.locator(".count").text_content())


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def opened(
        path: Path, *, scheme: str = "light", width: int = 1280, javascript: bool = True
    ) -> Opened:
        context = browser.new_context(
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
            java_script_enabled=javascript,
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        found = Opened(page)
        page.on("console", lambda m: found.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        if javascript:
            page.wait_for_selector("#browser[data-ready]", timeout=30_000)
        return found

    yield opened
    for context in contexts:
        context.close()
