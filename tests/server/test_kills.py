"""SIGKILL of the server at random moments of an upload, a check, a run and a writing out: nothing
that was acknowledged is lost, no row is there twice, and the files of the batch are those of a
server that nobody disturbed, byte for byte."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.jobs.driving import ENVIRONMENT, ROOT, records
from tests.server.stored import CHAT, chat_line, lines_of

KILLS, LONG_KILLS = 5, 200  # one at each of the MOMENTS, at least
ROWS = 1500
MOMENTS = ("upload", "check", "run", "run", "finish")
ENDS = ("completed", "failed", "expired", "cancelled")


class Server:
    """One life of a server."""

    def __init__(self, folder: Path, seconds: float, port: int = 0) -> None:
        arguments = map(str, (folder, seconds, port))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.serve_stored", *arguments],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        address = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=address, timeout=30, verify=False)

    def upload(self, data: bytes) -> dict[str, Any]:
        files = {"file": ("in.jsonl", data)}
        found = self.http.post("/v1/files", files=files, data={"purpose": "batch"})
        return found.raise_for_status().json()

    def create(self, file_id: str) -> dict[str, Any]:
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        return self.http.post("/v1/batches", json=body).raise_for_status().json()

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self.http.get(f"/v1/batches/{batch_id}").raise_for_status().json()

    def ended(self, batch_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while (found := self.batch(batch_id))["status"] not in ENDS:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    def content(self, file_id: str | None) -> bytes:
        assert file_id is not None
        return self.http.get(f"/v1/files/{file_id}/content").raise_for_status().content

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(folder: Path, seconds: float, port: int = 0) -> Iterator[Server]:
    server = Server(folder, seconds, port)
    try:
        yield server
    finally:
        server.kill()
        server.http.close()
        assert server.process.stdout is not None
        server.process.stdout.close()


class Storm:
    """One folder, one batch, and a server that is killed again and again."""

    def __init__(self, folder: Path, batch_id: str, rng: random.Random) -> None:
        self.folder, self.batch_id, self._rng = folder, batch_id, rng
        self.uploads: dict[str, bytes] = {}  # acknowledged
        self.known: dict[int, tuple[object, ...]] = {}

    def live_and_die(self, moment: str) -> bool:
        """Whether the batch had ended before the kill came."""
        rng = self._rng
        with serving(self.folder, 0.05) as server:
            self.check(server)
            found = server.batch(self.batch_id)
            if moment == "upload":
                self._upload(server)
            elif moment == "check":
                time.sleep(rng.uniform(0.0, 0.05))
            elif moment == "run":
                time.sleep(rng.uniform(0.0, 0.8))
            else:
                deadline = time.monotonic() + 30
                while (found := server.batch(self.batch_id))["status"] == "in_progress":
                    left = found["request_counts"]["total"] - found["request_counts"]["completed"]
                    if left < rng.choice((0, 100, 1000)) or time.monotonic() > deadline:
                        break
                time.sleep(rng.uniform(0.0, 0.03))
            server.kill()
        self._check_journal()
        return found["status"] in ENDS

    def _upload(self, server: Server) -> None:
        """Kill the server while bytes arrive, or just after."""
        data = self._rng.randbytes(self._rng.choice((100, 200_000, 3_000_000)))
        stop_at = self._rng.randrange(2 * len(data))

        def pieces() -> Iterator[bytes]:
            yield b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
            yield b"--B\r\n"
            yield b'Content-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
            for at in range(0, len(data), 50_000):
                if at > stop_at:
                    server.kill()
                yield data[at : at + 50_000]
            yield b"\r\n--B--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=B"}
        with suppress(httpx.HTTPError):
            found = server.http.post("/v1/files", content=pieces(), headers=headers)
            self.uploads[found.raise_for_status().json()["id"]] = data

    def check(self, server: Server) -> None:
        """Everything acknowledged is there, and nothing else is on disk."""
        listed = server.http.get("/v1/files?purpose=user_data").json()["data"]
        assert set(self.uploads) <= {file["id"] for file in listed}
        for file_id, data in self.uploads.items():
            assert server.content(file_id) == data
        assert list((self.folder / "incoming").iterdir()) == []

    def _check_journal(self) -> None:
        for job_dir in (self.folder / "batches").iterdir():
            found = records(job_dir)
            rows = {int(f["row"]): (f["key"], tuple(f["outputs"])) for f in found}
            assert len(rows) == len(found), "a row is there twice"
            assert self.known.items() <= rows.items(), "an acknowledged row is gone, or another"
            self.known = dict(rows)


def begun(folder: Path) -> str:
    """A folder with a batch that was acknowledged, and of which nothing is computed yet."""
    lines = [chat_line(f"row {i}", f"say {i}", temperature=1.0) for i in range(ROWS)]
    lines[70]["body"]["messages"][0]["content"] = "<bad>"
    with serving(folder, -1) as server:
        return str(server.create(server.upload(lines_of(*lines))["id"])["id"])


def files_of(folder: Path, batch_id: str) -> tuple[bytes, bytes, dict[str, Any]]:
    with serving(folder, 0.0) as server:
        batch = server.ended(batch_id)
        output = server.content(batch["output_file_id"])
        return output, server.content(batch["error_file_id"]), batch


def test_kills_change_nothing(tmp_path: Path, long_mode: bool) -> None:
    rng, wanted = random.Random(11), LONG_KILLS if long_mode else KILLS
    origin = tmp_path / "origin"
    batch_id = begun(origin)
    calm = tmp_path / "calm"
    shutil.copytree(origin, calm)
    output, errors, batch = files_of(calm, batch_id)
    assert batch["request_counts"] == {"total": ROWS, "completed": ROWS - 1, "failed": 1}
    lines = [json.loads(line) for line in output.splitlines()]
    assert len({line["custom_id"] for line in lines}) == ROWS - 1
    num_kills = num_batches = 0
    while num_kills < wanted:
        num_batches += 1
        storm = Storm(tmp_path / f"storm-{num_batches}", batch_id, rng)
        shutil.copytree(origin, storm.folder)
        while num_kills < wanted:
            num_kills += 1
            if storm.live_and_die(MOMENTS[num_kills % len(MOMENTS)]):
                break
        found = files_of(storm.folder, batch_id)
        assert found[:2] == (output, errors)
        assert found[2]["request_counts"] == batch["request_counts"]
        with serving(storm.folder, 0.0) as server:
            storm.check(server)
    print(f"{num_kills} kills, {num_batches} batches of the same bytes", flush=True)
