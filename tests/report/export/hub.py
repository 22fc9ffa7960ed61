"""A small Hub on this machine: the endpoints that pushing a data set uses, nothing pretended.

Files arrive as the real client sends them: small ones inside the commit, large ones through the
LFS batch endpoint and an upload of their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_not_a_real_token_0123456789"


@dataclass
class FakeHub:
    """What was pushed, and how."""

    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    refuse_with: int | None = None

    def __post_init__(self) -> None:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self, "GET", b"")

            def do_POST(self) -> None:
                hub.answer(self, "POST", self.body())

            def do_PUT(self) -> None:
                hub.answer(self, "PUT", self.body())

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, method: str, body: bytes) -> None:
        path = handler.path.split("?")[0]
        self.requests.append((method, path))
        self.tokens.add(handler.headers.get("Authorization", ""))
        if method == "PUT":
            found = hashlib.sha256(body).hexdigest()
            assert path == f"/upload/{found}"
            self.large[found] = body
            status, reply = 200, {}
        elif self.refuse_with is not None:
            status, reply = self.refuse_with, {"error": "refused by the test"}
        else:
            status, reply = self.reply(path, body)
        content = json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def reply(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if repo in self.private:
                return 409, {"error": "You already created this repo", "url": self.address(repo)}
            # Newer clients say "visibility", older ones "private".
            self.private[repo] = asked.get("visibility") == "private" or bool(asked.get("private"))
            return 200, {"url": self.address(repo), "id": repo, "name": repo}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            files = [f["path"] for f in json.loads(body)["files"]]
            modes = {p: "lfs" if p.endswith(".parquet") else "regular" for p in files}
            described = [
                {"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()
            ]
            return 200, {"files": described}
        if path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            upload = [{**o, "actions": {"upload": {"href": f"{self.url}/upload/{o['oid']}"}}}
                      for o in asked]  # fmt: skip
            return 200, {"transfer": "basic", "objects": upload}
        if path.endswith("/commit/main"):
            return 200, self.commit(path, body)
        if path.startswith("/api/datasets/"):
            repo = "/".join(path.split("/")[3:5])
            return 200, {"id": repo, "private": self.private[repo], "tags": [], "sha": "a" * 40}
        return 404, {"error": f"no such endpoint: {path}"}

    def commit(self, path: str, body: bytes) -> dict[str, Any]:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.files[value["path"]] = self.large[value["oid"]]
        repo = "/".join(path.split("/")[3:5])
        oid = "b" * 40
        url = f"{self.address(repo)}/commit/{oid}"
        return {"success": True, "commitOid": oid, "commitUrl": url}

    def address(self, repo: str) -> str:
        return f"{self.url}/datasets/{repo}"
