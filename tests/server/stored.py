"""A server that keeps files and batches, over an engine without a model, in this process.

The app, the guard, the translator, the database and the journals are the real ones.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from quire.openai_api.errors import ApiError
from quire.openai_api.outputs import Answer, Output
from quire.replicas.suspects import Death
from quire.server.app import make_app
from quire.server.batch_service import BatchService, StoreSettings
from quire.server.engine_died import EngineDied
from quire.server.keys import Keys, hash_of
from quire.server.services import EngineStats, Services, Settings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KEYS = ("sk-quire-first-of-two-keys", "sk-quire-second-of-two-keys")
MODEL = "fake"
ClientTest = Callable[..., Awaitable[None]]


class FakeEngine:
    """Answers with a text that prompt, parameters and seed decide. Words in a prompt change that:
    <crash> brings the engine down with everything it holds, <bad> is refused, <nan> fails,
    <fault> raises what nobody foresaw."""

    def __init__(self, *, seconds: float = 0.0, capacity: int = 8) -> None:
        self.seconds, self.capacity = seconds, capacity
        self.facts: Mapping[str, Any] = {"arithmetic": {"device": "none"}, "capacity": capacity}
        self.state = "ready"
        self.open = asyncio.Event()  # nothing is answered while it is not set
        self.open.set()
        self.asked: list[str] = []
        self.lanes: set[str] = set()
        self.num_crashes = self.most_held = 0
        self._held: set[asyncio.Future[None]] = set()
        self._prompt_tokens = self._output_tokens = 0

    async def ready(self) -> None:
        while self.state != "ready":
            await asyncio.sleep(0.01)

    async def generate(
        self, row: dict[str, Any], *, lane: str = "interactive", key_id: str = "local"
    ) -> AsyncIterator[Output]:
        prompt = str(row.get("prompt") or row["messages"][-1]["content"])
        self.asked.append(prompt)
        self.lanes.add(lane)
        if "<bad>" in prompt:
            raise ApiError(400, "the prompt is bad", code="invalid_prompt", param="messages")
        if "<fault>" in prompt:
            raise LookupError(prompt)
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.add(held)
        self.most_held = max(self.most_held, len(self._held))
        try:
            await self.open.wait()
            if "<crash>" in prompt:
                self.num_crashes += 1
                for each in [*self._held]:
                    if not each.done():
                        each.set_exception(EngineDied(Death(life=9.0, run=0.1)))
            await asyncio.wait((held,), timeout=self.seconds)
            if held.done():
                held.result()
        finally:
            self._held.discard(held)
            if held.done():
                held.exception()
        if "<nan>" in prompt:
            raise ApiError(500, "the model gave NaN", code="nan_logits", type="server_error")
        output = _output(prompt, row["params"])
        self._prompt_tokens += output.prompt_tokens
        self._output_tokens += output.output_tokens
        yield output

    async def call(self, kind: str, **given: Any) -> dict[str, Any]:
        raise NotImplementedError

    def add_metrics(self, collector: Any) -> None:
        self.collected = collector

    def metrics_text(self) -> bytes:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats(
            state="ready",
            running_batch=len(self._held),
            kv_use=0.25,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
        )


def _output(prompt: str, params: Mapping[str, Any]) -> Output:
    asked = json.dumps([prompt, dict(params)], sort_keys=True)
    answers = tuple(
        Answer(
            index=i,
            text=f"{hashlib.sha256(f'{asked}{i}'.encode()).hexdigest()[:12]} · {prompt[:40]}",
            token_ids=(1, 2, 3),
            finish_reason="stop",
        )
        for i in range(params.get("n", 1))
    )
    return Output(answers, True, len(prompt), 3 * len(answers), cached_tokens=len(prompt) // 2)


class Client:
    """What a client of the server does, over HTTP as it is spoken."""

    def __init__(self, http: httpx.AsyncClient, service: BatchService, engine: FakeEngine) -> None:
        self.http, self.service, self.engine = http, service, engine

    async def upload(
        self, data: bytes, *, name: str = "in.jsonl", purpose: str = "batch", **more: Any
    ) -> httpx.Response:
        form = {"purpose": purpose, **more.pop("form", {})}
        return await self.http.post("/v1/files", files={"file": (name, data)}, data=form, **more)

    async def create(self, file_id: str, **fields: Any) -> httpx.Response:
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
        return await self.http.post("/v1/batches", json=body)

    async def batch(self, data: bytes, **fields: Any) -> dict[str, Any]:
        """A batch over these lines, at its end."""
        created = await self.create((await self.upload(data)).json()["id"], **fields)
        assert created.status_code == 200, created.text
        return await self.ended(created.json()["id"])

    async def get(self, batch_id: str) -> dict[str, Any]:
        return (await self.http.get(f"/v1/batches/{batch_id}")).json()

    async def until(self, batch_id: str, *states: str, seconds: float = 20.0) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while (found := await self.get(batch_id))["status"] not in states:
                await asyncio.sleep(0.01)
            return found

    async def ended(self, batch_id: str) -> dict[str, Any]:
        return await self.until(batch_id, "completed", "failed", "expired", "cancelled")

    async def content(self, file_id: str) -> bytes:
        found = await self.http.get(f"/v1/files/{file_id}/content")
        assert found.status_code == 200
        return found.content

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [json.loads(line) for line in (await self.content(file_id)).splitlines()]


@asynccontextmanager
async def serving(
    folder: Path,
    engine: FakeEngine | None = None,
    *,
    keys: tuple[str, ...] = (),
    model: str = MODEL,
    **stored: Any,
) -> AsyncIterator[Client]:
    """A running server, and a client of it that shows the first key."""
    engine = engine or FakeEngine()
    service = BatchService(StoreSettings(folder, **stored))
    services = Services(
        engine=engine,  # type: ignore[arg-type]
        settings=Settings(model=model, names=(MODEL,), data_dir=folder),
        keys=Keys(hash_of(key) for key in keys),
    )
    app = make_app(services, service)
    headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
    from quire.server import batch_routes

    try:
        async with batch_routes.running(services, service):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", headers=headers
            ) as http:
                yield Client(http, service, engine)
    finally:
        service.close()


def with_server(
    folder: Path, test: ClientTest, engine: FakeEngine | None = None, **stored: Any
) -> None:
    async def main() -> None:
        async with serving(folder, engine, **stored) as client:
            await test(client)

    asyncio.run(main())


def served(
    engine: Callable[[], FakeEngine] = FakeEngine, **stored: Any
) -> Callable[[ClientTest], Callable[..., None]]:
    """For a test that is a client of a server in its own folder: `client` is its first argument,
    the others are fixtures."""

    def made(test: ClientTest) -> Callable[..., None]:
        parameters = dict(inspect.signature(test).parameters)
        del parameters["client"]
        wants_folder = "tmp_path" in parameters
        parameters["tmp_path"] = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)

        @functools.wraps(test)
        def run(tmp_path: Path, **fixtures: Any) -> None:
            given = {**fixtures, "tmp_path": tmp_path} if wants_folder else fixtures
            with_server(tmp_path, functools.partial(test, **given), engine(), **stored)

        ordered = sorted(parameters.values(), key=lambda each: each.kind)
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return run

    return made


def chat_line(number: int | str, text: str, **body: Any) -> dict[str, Any]:
    return {
        "custom_id": str(number),
        "method": "POST",
        "url": CHAT,
        "body": {"model": MODEL, "messages": [{"role": "user", "content": text}], **body},
    }


def lines_of(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def chats(count: int, text: str = "row {}") -> bytes:
    return lines_of(*(chat_line(i, text.format(i)) for i in range(count)))
