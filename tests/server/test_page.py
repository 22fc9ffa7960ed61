"""The page in a real browser, against a real server: a table goes in, answers come out."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from quire.server import links
from quire.server.app import make_app
from quire.server.batch_service import BatchService, StoreSettings
from quire.server.keys import Keys, hash_of
from quire.server.links import Linked, Links
from quire.server.serve import bind
from quire.server.services import Services, Settings
from tests.report.conftest import Opened, browser  # noqa: F401
from tests.server.stored import KEYS, MODEL, FakeEngine, chat_line, lines_of
from tests.server.test_kills import serving as killed_later

XSS = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


class Running:
    """A server on a thread, at an address that a browser can open."""

    def __init__(self, folder: Path, *, seconds: float = 0.05, port: int = 0) -> None:
        self.folder = folder
        self._socket = bind("127.0.0.1", port)
        self.port = self._socket.getsockname()[1]
        self._seconds = seconds
        self._server: uvicorn.Server | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(20)

    async def _serve(self) -> None:
        service = BatchService(StoreSettings(self.folder))
        services = Services(
            engine=FakeEngine(seconds=self._seconds),  # type: ignore[arg-type]
            settings=Settings(model=MODEL, names=(MODEL,), data_dir=self.folder),
            keys=Keys([hash_of(KEYS[0])]),
        )
        config = uvicorn.Config(make_app(services, service), log_config=None, lifespan="on")
        self._server = uvicorn.Server(config)
        asyncio.get_running_loop().call_later(0.1, self._started.set)
        await self._server.serve([self._socket])
        service.close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(
            verify=False,
            base_url=self.address,
            headers={"authorization": f"Bearer {KEYS[0]}"},
            timeout=20,
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a batch that has ended, for tests that change nothing."""
    running = Running(tmp_path_factory.mktemp("shared"), seconds=0.0)
    with running.client() as http:
        form, data = {"purpose": "batch"}, lines_of(chat_line("a", "x"), chat_line("b", "<bad>"))
        file = http.post("/v1/files", files={"file": ("a.jsonl", data)}, data=form).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions"}
        http.post("/v1/batches", json={**body, "completion_window": "1h"}).raise_for_status()
    yield running
    running.stop()


OpenServer = Callable[..., Opened]


@pytest.fixture
def visit(browser: Any) -> Iterator[OpenServer]:  # noqa: F811
    contexts = []

    def opened(
        address: str, *, key: str | None = KEYS[0], scheme: str = "light", width: int = 1280
    ) -> Opened:
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        found = Opened(page)
        page.on("console", lambda m: found.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(f"{address}/#key={key}" if key else f"{address}/")
        if key:
            page.locator("#state", has_text="ready").wait_for()
        return found

    yield opened
    for context in contexts:
        context.close()


def table(count: int) -> dict[str, Any]:
    """A CSV file with commas, quotes, line ends and markup in its cells."""
    rows = (
        (f"review, {i}", XSS if i == 1 else "two\r\nlines" if i == 2 else "") for i in range(count)
    )
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("text", "a note"))
    writer.writerows(rows)
    return {"name": f"{XSS}.csv", "mimeType": "text/csv", "buffer": text.getvalue().encode()}


def batch_file(count: int, text: str = "row {}") -> dict[str, Any]:
    lines = lines_of(*(chat_line(i, text.format(i)) for i in range(count)))
    return {"name": "in.jsonl", "mimeType": "application/jsonl", "buffer": lines}


def complaints(opened: Opened) -> list[str]:
    """What the console says, but for a first look that came before the server was reached."""
    return [each for each in opened.complaints if "401" not in each and "ERR_" not in each]


def only_batch(page: Any, state: str) -> Any:
    item = page.locator(".batch-list > li").first
    item.locator(".pill", has_text=state).wait_for(timeout=20_000)
    return item


def test_a_table_goes_in_and_answers_come_out(
    server: Running, visit: OpenServer, tmp_path: Path
) -> None:
    opened = visit(server.address)
    page = opened.page
    page.set_input_files("#file", table(40))
    page.locator("#detected", has_text="a table with 40 rows").wait_for()
    assert page.locator("#preview li").count() == 5
    assert page.input_value("#prompt") == "{{ a note }}"  # of its columns the one with most text
    page.fill("#prompt", "Good? {{ text }}, {{ nothing }}")
    assert "no column" in page.locator("#new-message").text_content()
    assert page.locator("#start").is_disabled()
    page.fill("#prompt", "Good? {{ text }} [{{a note}}]")
    shown = page.locator("#preview .text").all_text_contents()
    assert shown[1] == f"Good? review, 1 [{XSS}]"
    assert shown[2] == "Good? review, 2 [two\r\nlines]"
    page.fill("#system", "Be short.")
    page.click("#start")
    item = only_batch(page, "completed")
    assert "40 of 40 rows" in item.locator(".batch-facts").text_content()
    with page.expect_download() as downloading:
        item.get_by_role("button", name="Download answers").click()
    downloading.value.save_as(tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [line["custom_id"] for line in lines] == [f"row-{i + 1}" for i in range(40)]
    assert XSS[:20] in lines[1]["response"]["body"]["choices"][0]["message"]["content"]
    with page.expect_popup() as opening:
        item.get_by_role("button", name="Open report").click()
    report = opening.value
    report.wait_for_selector("#browser[data-ready]")
    assert "40 rows" in report.locator(".count").text_content()
    assert report.evaluate("window.origin") == "null"  # it cannot act as the page
    assert str(tmp_path) not in report.content()  # nor does it say where files are kept
    assert page.title() == "quire"
    assert [url for url in opened.requests if not url.startswith((server.address, "blob:"))] == []
    assert complaints(opened) == []


def test_links_work_once_and_show_no_key(server: Running) -> None:
    with server.client() as http:
        form = {"purpose": "user_data"}
        file = http.post("/v1/files", files={"file": ("x", b"secret")}, data=form).json()["id"]
        url = http.post(f"/v1/files/{file}/link").json()["url"]
        assert KEYS[0] not in url
    with httpx.Client(base_url=server.address, verify=False) as stranger:
        assert stranger.post(f"/v1/files/{file}/link").status_code == 401
        assert stranger.get("/quire/status").status_code == 401
        assert stranger.get(url).content == b"secret"
        assert stranger.get(url).status_code == 404
        assert stranger.get("/download/x").status_code == 404
        shown = stranger.get("/")
        assert shown.status_code == 200 and "unsafe" not in shown.headers["content-security-policy"]


def test_a_link_is_over_after_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Links()
    path = tmp_path / "report.html"
    path.write_text("x")
    token = made.make(Linked(path, "x", "text/html", temporary=True))
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 61))
    assert made.take(token) is None
    assert not path.exists()


def test_a_key_is_asked_for_and_kept_in_the_tab(server: Running, visit: OpenServer) -> None:
    opened = visit(server.address, key=None)
    page = opened.page
    page.locator("#key").wait_for()
    for key, state in (("wrong-key-wrong-key", "key needed"), (KEYS[0], "ready")):
        page.fill("#key-value", key)
        page.keyboard.press("Enter")
        page.locator("#state", has_text=state).wait_for()
    page.locator("#key").wait_for(state="hidden")
    assert (
        page.evaluate("[...Object.values(localStorage), ...Object.values(sessionStorage)].join()")
        == ""
    )
    assert KEYS[0] not in page.content() and KEYS[0] not in page.url
    opened = visit(server.address)  # with the key in the link
    assert KEYS[0] not in opened.page.url


def test_everything_is_reached_by_keys(server: Running, visit: OpenServer) -> None:
    page = visit(server.address).page
    page.set_input_files("#file", batch_file(5))  # what a file dialog does
    page.locator("#start:enabled").wait_for()
    page.locator("#file").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "start":
            break
    page.keyboard.press("Enter")
    item = only_batch(page, "completed")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"Download answers", "Open report"} <= reached
    assert item.get_by_role("button").count() >= 2


def test_a_batch_is_cancelled_by_two_presses(server: Running, visit: OpenServer) -> None:
    page = visit(server.address).page
    page.set_input_files("#file", batch_file(8000))
    page.locator("#start:enabled").click()
    item = only_batch(page, "running")
    item.get_by_role("button", name="Cancel").click()
    item.get_by_role("button", name="Cancel for good?").click()
    item = only_batch(page, "cancelled")
    assert "failed" in item.locator(".batch-facts .bad").text_content()
    item.get_by_role("button", name="Download failed lines").wait_for()


def test_a_kill_is_seen_and_the_page_finds_its_way_back(tmp_path: Path, visit: OpenServer) -> None:
    with killed_later(tmp_path / "data", 0.3) as first:
        opened = visit(f"http://127.0.0.1:{first.port}", key=None)
        page = opened.page
        page.locator("#state", has_text="ready").wait_for()
        page.set_input_files("#file", batch_file(1500))
        page.locator("#start:enabled").click()
        only_batch(page, "running")
        first.kill()
        page.locator("#state", has_text="no answer").wait_for()
    with killed_later(tmp_path / "data", 0.0, first.port):
        page.locator("#state", has_text="ready").wait_for()
        item = only_batch(page, "completed")
        assert "1,500 of 1,500 rows" in item.locator(".batch-facts").text_content()
        assert complaints(opened) == []


def test_nothing_from_outside_runs(server: Running, visit: OpenServer) -> None:
    wrong = lines_of(chat_line(XSS, "x"), {"custom_id": XSS, "url": XSS, "body": {}})
    with server.client() as http:
        for data in (lines_of(chat_line(XSS, XSS)), wrong, lines_of(chat_line("a", f"<bad>{XSS}"))):
            form = {"purpose": "batch"}
            file = http.post("/v1/files", files={"file": (f"{XSS}.jsonl", data)}, data=form).json()
            body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions"}
            http.post("/v1/batches", json={**body, "completion_window": "1h"}).raise_for_status()
    opened = visit(server.address)
    page = opened.page
    refused = page.locator(".batch-list > *", has=page.locator(".pill", has_text="failed"))
    assert refused.locator("progress").evaluate("bar => bar.value") == 0  # nothing of it ran
    page.locator(".batch-errors li").first.wait_for()
    assert "<img" in page.locator(".batch-list").text_content()
    page.set_input_files("#file", {"name": f"{XSS}.csv", "mimeType": "", "buffer": XSS.encode()})
    page.locator("#detected", has_text="<img").wait_for()
    assert page.title() == "quire" and page.locator(".batch-list img").count() == 0
    assert complaints(opened) == []


WRONG = (
    ("a.csv", "a,b\n1\n", "Row 1 has 1 cells"),
    ("a.csv", 'a\n"x', "never closed"),
    ("a.csv", "a,a\n1,2\n", "same name"),
    ("a.csv", "a,b\n", "no rows"),
    ("a.jsonl", "x,y\n", "no JSON"),
    ("a.jsonl", "[1]\n", "no JSON object"),
    ("a.jsonl", '{"a": 1}\nx\n', "Line 2"),
    ("a.jsonl", "\n", "empty"),
)


def test_a_file_that_is_no_table_says_why(shared: Running, visit: OpenServer) -> None:
    page = visit(shared.address).page
    for name, text, said in WRONG:
        page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": text.encode()})
        page.locator("#detected.error", has_text=said).wait_for()
        assert page.locator("#start").is_disabled()


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (768, "light"), (1280, "dark")])
def test_the_page_fits_and_is_accessible(
    shared: Running, visit: OpenServer, width: int, scheme: str
) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    opened = visit(shared.address, width=width, scheme=scheme)
    page = opened.page
    page.set_input_files("#file", table(7))
    page.locator("#preview li").first.wait_for()
    page.locator(".batch-list > li").first.wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".chart canvas").count() == 2
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run()")
    told = [(v["id"], [n["html"][:160] for n in v["nodes"][:3]]) for v in found["violations"]]
    assert told == [] and len(found["passes"]) > 20
    assert complaints(opened) == []
