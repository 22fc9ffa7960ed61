"""What `quire serve` costs, and what waiting costs beside a batch.

    python benchmarks/serve.py [--only batch first streams queue]
    python benchmarks/serve.py --model qwen3-0.6b --rows 4000 --option gpu_memory_utilization=0.4
    python benchmarks/serve.py --model qwen3-0.6b --no-model 0.002+0.000003

One server in a process of its own, without keys, and a client here. Its model is the default one,
or a shape (benchmarks/models) with random weights; on a GPU two engines must have room at once.
With `--no-model` nothing is computed: a pass takes so many seconds, and so many more for each token
of it, and the rest is the host's (benchmarks/no_model.py):

  batch    the same lines by `quire batch`, less what it takes for the first of them, and as a
           batch over HTTP, from the file's upload to "completed"; in turn, twice, the best of each:
           the seconds of the first divided by those of the second (1 is no loss)
  first    to the first token of a stream, and from each token to the next, one request after the
           other: on an idle server, and beside a batch that would take all of it; p50, p99 and the
           ratio of the p99s
  streams  512 streams at once: those that failed, tokens per second, processor seconds of HTTP,
           and the same chats by `quire batch`
  queue    10,000 requests that wait, and again: memory of the HTTP process before, with them, and
           with the second 10,000; how long a refused one takes

About five minutes on two cores. Ratios are of one run; figures say something only if nothing else
runs on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shapes import Model
from benchmarks.shapes import opened as opened_model

PARTS = ("batch", "first", "streams", "queue")
CHAT, NAME = "/v1/chat/completions", "served"
STREAMED = 12  # tokens of a stream that is timed
PAGE = resource.getpagesize()
COMMAND = [sys.executable, "-m", "quire"]


@dataclass(frozen=True)
class Server:
    """A server that runs, and its process."""

    port: int
    pid: int

    def resident(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: Model, *options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMMAND, "serve", model.path, "--port", "0", "--no-key"]
        command += [f"--option={name}={value}" for name, value in model.options.items()]
        process = subprocess.Popen(
            [*command, "--name", NAME, "--data", folder, "--grace", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            port = 0
            for line in process.stdout or ():
                if line.startswith("address"):
                    port = int(line.rpartition(":")[2].partition("/")[0])
                if line.startswith("page"):
                    break
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


async def opened(server: Server, path: str, body: Any, *, method: str = "POST") -> Any:
    """A connection on which a request was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    if isinstance(body, bytes):
        kind, data = "multipart/form-data; boundary=x", body
    else:
        kind, data = "application/json", b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


async def asked(server: Server, path: str, body: Any, *, method: str = "POST") -> tuple[int, bytes]:
    reader, writer = await opened(server, path, body, method=method)
    try:
        came = await reader.read(-1)
    finally:
        writer.close()
    return int(came.split(b" ", 2)[1]), came


async def told(server: Server, path: str, body: Any, *, method: str = "POST") -> Any:
    status, came = await asked(server, path, body, method=method)
    if status != 200:
        raise SystemExit(f"{path}: {came[-500:].decode()}")
    return json.loads(came.partition(b"\r\n\r\n")[2])


def chat(number: int, tokens: int, **more: Any) -> dict[str, Any]:
    """A chat that no other has, of about a hundred tokens. It is drawn by chance: the likeliest
    token of random weights may be half a character for ever, of which no stream tells."""
    words = " ".join(f"{(number * 7919 + i * 104729) % 9973}" for i in range(20))
    messages = [{"role": "user", "content": f"Add these numbers: {words}."}]
    body = {"model": NAME, "messages": messages, "max_tokens": tokens, "seed": number}
    return {**body, "temperature": 1, "ignore_eos": True, **more}


def batch_lines(first: int, rows: int, tokens: int) -> bytes:
    return b"".join(
        json.dumps(
            {"custom_id": f"{i}", "method": "POST", "url": CHAT, "body": chat(first + i, tokens)}
        ).encode()
        + b"\n"
        for i in range(rows)
    )


async def begin_batch(server: Server, first: int, rows: int, tokens: int) -> str:
    lines = batch_lines(first, rows, tokens)
    name = b'--x\r\nContent-Disposition: form-data; name="'
    form = name + b'purpose"\r\n\r\nbatch\r\n'
    form += name + b'file"; filename="in.jsonl"\r\n\r\n' + lines + b"\r\n--x--\r\n"
    file = await told(server, "/v1/files", form)
    fields = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = await told(server, "/v1/batches", fields)
    return str(made["id"])


async def batch_state(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await told(server, f"/v1/batches/{name}", None, method="GET")
    return found


async def batch_seconds(server: Server, first: int, rows: int, tokens: int) -> float:
    began = time.monotonic()
    name = await begin_batch(server, first, rows, tokens)
    while (state := await batch_state(server, name))["status"] not in ("completed", "failed"):
        await asyncio.sleep(0.05)  # on a GPU small models need a second for all of it
    if state["request_counts"]["completed"] != rows:
        raise SystemExit(f"the batch ended otherwise: {state}")
    return time.monotonic() - began


def offline(model: Model, first: int, rows: int, tokens: int) -> float:
    """Seconds of `quire batch` over these lines, its start among them."""
    with tempfile.TemporaryDirectory() as folder:
        given, written = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        given.write_bytes(batch_lines(first, rows, tokens))
        command = [*COMMAND, "batch", str(given), "-o", str(written)]
        command += ["--model", model.path, "--json", "--quiet"]
        command += [f"--option={name}={value}" for name, value in model.options.items()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"quire batch: {done.stderr[-2000:]}{done.stdout[-2000:]}")
        return float(json.loads(done.stdout)["seconds"])


async def without_start(model: Model, first: int, rows: int, tokens: int) -> float:
    """Seconds of `quire batch` over these lines, less what it takes for the first of them."""
    whole = await asyncio.to_thread(offline, model, first, rows, tokens)
    return whole - await asyncio.to_thread(offline, model, first, 1, tokens)


async def batch(server: Server, arguments: argparse.Namespace) -> None:
    rows, tokens, model = arguments.rows, arguments.tokens, arguments.opened
    await batch_seconds(server, 900_000, rows // 4, tokens)  # warm
    found: list[tuple[float, float, float]] = []
    for first in (0, 100_000):
        spent = server.cpu_seconds()
        seconds = await batch_seconds(server, first, rows, tokens)
        spent = server.cpu_seconds() - spent
        found.append((seconds, await without_start(model, first, rows, tokens), spent))
    over_http, alone = min(one[0] for one in found), min(one[1] for one in found)
    print(
        f"batch    {over_http:.2f} s over HTTP, with {min(one[2] for one in found):.2f} s of a "
        f"processor beside the engine; {alone:.2f} s offline: {alone / over_http:.2f}"
    )


async def stream_seconds(server: Server, number: int) -> list[float]:
    """To the first text of a stream, and from each to the next."""
    reader, writer = await opened(server, CHAT, chat(number, STREAMED, stream=True))
    times = [time.monotonic()]
    while line := await reader.readline():
        if b'"delta":{"content":"' in line:
            times.append(time.monotonic())
    writer.close()
    return [after - before for before, after in itertools.pairwise(times)]


async def in_turn(server: Server, first: int, count: int) -> list[list[float]]:
    """Requests one after the other, a little apart: all first tokens, and all gaps."""
    firsts, gaps = [], []
    for i in range(count):
        to_first, *others = await stream_seconds(server, first + i)
        firsts.append(to_first)
        gaps += others
        await asyncio.sleep(0.02)
    return [firsts, gaps]


def ends(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    return 1e3 * statistics.median(seconds), 1e3 * statistics.quantiles(seconds, n=100)[98]


async def first(server: Server, arguments: argparse.Namespace) -> None:
    await in_turn(server, 1_000_000, 10)  # warm
    idle = await in_turn(server, 2_000_000, arguments.requests)
    name = await begin_batch(server, 3_000_000, 100 * arguments.rows, arguments.tokens)
    while not (await batch_state(server, name))["request_counts"]["completed"]:
        await asyncio.sleep(0.1)
    beside = await in_turn(server, 4_000_000, arguments.requests)
    state = await batch_state(server, name)
    await told(server, f"/v1/batches/{name}/cancel", None)
    for what, alone, with_it in zip(("first", "next"), idle, beside, strict=True):
        (p50, p99), (late50, late99) = ends(alone), ends(with_it)
        print(
            f"{what:8} idle p50 {p50:.0f} p99 {p99:.0f} ms, beside a batch p50 {late50:.0f} p99 "
            f"{late99:.0f} ms: {late99 / p99:.2f}"
        )
    print(f"         the batch had {state['request_counts']['completed']} rows by then")
    while (await batch_state(server, name))["status"] != "cancelled":
        await asyncio.sleep(0.1)


async def streams(server: Server, arguments: argparse.Namespace) -> None:
    count, tokens, first = arguments.streams, 32, 5_000_000
    began, spent = time.monotonic(), server.cpu_seconds()
    bodies = [chat(first + i, tokens, stream=True) for i in range(count)]
    came = await asyncio.gather(*(asked(server, CHAT, body) for body in bodies))
    seconds = time.monotonic() - began
    failed = sum(status != 200 or b"data: [DONE]" not in text for status, text in came)
    chunks = sum(text.count(b"data: ") for _, text in came)
    spent = (server.cpu_seconds() - spent) / chunks * 1e6
    alone = await without_start(arguments.opened, first, count, tokens)
    print(
        f"streams  {count}, {failed} failed, {count * tokens / seconds:.0f} tokens/s; HTTP took "
        f"{spent:.0f} us of a processor for each event; {count * tokens / alone:.0f} tokens/s "
        f"offline: {alone / seconds:.2f}"
    )


async def fill(server: Server, count: int) -> list[Any]:
    """So many requests that wait; the connections they came on."""
    held: list[Any] = []
    for begin in range(0, count, 250):
        several = range(begin, min(begin + 250, count))
        bodies = [chat(6_000_000 + i, 512) for i in several]
        held += await asyncio.gather(*(opened(server, CHAT, body) for body in bodies))
    for _ in range(600):
        _, text = await asked(server, "/metrics", None, method="GET")
        lines = [one for one in text.splitlines() if one.startswith(b"quire:num_requests_")]
        if sum(float(line.split()[-1]) for line in lines) >= count - 64:
            break
        await asyncio.sleep(0.1)
    return held


async def queue(server: Server, arguments: argparse.Namespace) -> None:
    resident, refused = [server.resident()], []
    for _ in range(2):
        held = await fill(server, arguments.queued)
        resident.append(server.resident())
        for i in range(50):
            began = time.monotonic()
            status, _ = await asked(server, CHAT, chat(i, 4))
            refused += [time.monotonic() - began] if status == 429 else []
        for _, writer in held:
            writer.close()
        await asyncio.sleep(5)
    late = statistics.quantiles(refused, n=100)[98] * 1e3 if len(refused) > 1 else float("nan")
    before, full, again = (one >> 20 for one in resident)
    print(
        f"queue    {arguments.queued} wait: {before} MiB before, {full} with them, {again} with as "
        f"many again; {len(refused)} of 100 more refused, p99 {late:.0f} ms"
    )


async def run(arguments: argparse.Namespace) -> None:
    with serving(arguments.opened, "--max-queue", str(arguments.queued)) as server:
        for part in arguments.only:
            await {"batch": batch, "first": first, "streams": streams, "queue": queue}[part](
                server, arguments
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", default="smollm2", help="a name, a path or a shape")
    parser.add_argument("--option", nargs="+", default=[], help="of both engines: NAME=VALUE")
    parser.add_argument("--no-model", metavar="SECONDS", help="that a pass takes: 0.002+0.000003")
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--rows", type=int, default=320, help="of a batch")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer of a batch")
    parser.add_argument("--requests", type=int, default=100, help="whose first token is timed")
    parser.add_argument("--queued", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.no_model is not None:
        COMMAND[-1] = "benchmarks.no_model"
        os.environ["QUIRE_PASS"] = arguments.no_model
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * arguments.queued), hard))
    options = dict(one.split("=", 1) for one in arguments.option)
    with opened_model(arguments.model, speaks=True, **options) as arguments.opened:
        asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
