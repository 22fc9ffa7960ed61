"""Batches whose files somebody removed or broke: they end, and say why."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from quire.server import batch_service
from tests.server.stored import Client, chats, served, serving


async def running(client: Client) -> tuple[str, Path]:
    """A batch that has begun and waits for the engine, and its directory."""
    client.engine.open.clear()
    batch = (await client.create((await client.upload(chats(3))).json()["id"])).json()["id"]
    async with asyncio.timeout(10):
        while len(client.engine.asked) < 3:
            await asyncio.sleep(0.01)
    [directory] = (client.service.storage.root / "batches").iterdir()
    return str(batch), directory


@served()
async def test_a_running_batch_whose_folder_is_deleted_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_service, "AGAIN_SECONDS", 0.02)
    batch, directory = await running(client)
    shutil.rmtree(directory)
    client.engine.open.set()
    ended = await client.ended(batch)
    assert ended["status"] == "failed" and ended["failed_at"] and ended["status_details"] is None
    assert [error["code"] for error in ended["errors"]["data"]] == ["batch_lost"]
    assert ended["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
    assert (await client.batch(chats(2)))["status"] == "completed"  # others go on


@served()
async def test_a_cancelled_batch_whose_folder_is_deleted_is_cancelled(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_service, "AGAIN_SECONDS", 0.02)
    batch, directory = await running(client)
    shutil.rmtree(directory)
    await client.http.post(f"/v1/batches/{batch}/cancel")
    ended = await client.ended(batch)
    assert ended["status"] == "cancelled" and ended["output_file_id"] is None


@pytest.mark.parametrize("missing", ["manifest.json", "input"])
def test_a_batch_that_a_start_does_not_find_fails(tmp_path: Path, missing: str) -> None:
    async def main() -> None:
        async with serving(tmp_path) as client:
            batch, directory = await running(client)
        [lost] = [path for path in directory.iterdir() if missing in path.name]
        lost.unlink()
        async with serving(tmp_path) as client:
            assert (await client.ended(batch))["status"] == "failed"

    asyncio.run(main())


@served()
async def test_a_batch_whose_input_is_gone_before_it_is_read_fails(client: Client) -> None:
    file = (await client.upload(chats(3))).json()["id"]
    [stored] = [
        path for path in (client.service.storage.root / "files").rglob("*") if path.is_file()
    ]
    stored.unlink()
    ended = await client.ended((await client.create(file)).json()["id"])
    assert ended["status"] == "failed" and ended["errors"]["data"][0]["code"] == "batch_lost"


def test_a_folder_of_batches_that_is_away_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a disk that is not mounted: nothing is given up for it."""
    monkeypatch.setattr(batch_service, "AGAIN_SECONDS", 0.02)

    async def main() -> None:
        async with serving(tmp_path) as client:
            batch, directory = await running(client)
            away = directory.parent.with_name("away")
            directory.parent.rename(away)
            client.engine.open.set()
            async with asyncio.timeout(10):
                while (await client.get(batch))["status_details"] is None:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert (await client.get(batch))["status"] in ("in_progress", "finalizing")
            away.rename(directory.parent)
            ended = await client.ended(batch)
            assert ended["status"] == "completed"
            assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}

    asyncio.run(main())


@pytest.mark.parametrize("over", ["cancelled", "expired"])
def test_a_broken_batch_is_tried_again_until_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: str
) -> None:
    monkeypatch.setattr(batch_service, "AGAIN_SECONDS", 0.02)

    async def main() -> None:
        async with serving(tmp_path) as client:
            batch, directory = await running(client)
        (directory / "manifest.json").write_text("{}")
        async with serving(tmp_path) as client:
            async with asyncio.timeout(10):
                while (found := await client.get(batch))["status_details"] is None:
                    await asyncio.sleep(0.01)
            assert found["status"] == "in_progress"
            if over == "cancelled":
                await client.http.post(f"/v1/batches/{batch}/cancel")
            else:
                await client.service.database.write(
                    lambda to: to.execute("UPDATE batches SET expires_at = 1")
                )
            ended = await client.ended(batch)
            assert ended["status"] == ("cancelled" if over == "cancelled" else "failed")

    asyncio.run(main())
