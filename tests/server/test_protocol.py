"""Bytes of a connection, in whatever pieces they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.server.protocol import BoundedProtocol
from tests.server.serving import HEAD, raw, serving

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("end", ["\r\n{}\r\n0\r\n\r\n", "\r\n{}"])
def test_extensions_have_an_end_though_their_chunk_is_in_the_same_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """As a connection hands it over that has waited: all at once."""
    came, received = list[bytes](), BoundedProtocol.data_received

    def together(self: BoundedProtocol, data: bytes) -> None:
        came.append(data)
        if b"".join(came).endswith(end.encode()):
            received(self, b"".join(came))

    monkeypatch.setattr(BoundedProtocol, "data_received", together)
    start = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
    start += "Transfer-Encoding: chunked\r\n\r\n2;x=" + "y" * 200_000
    with serving(tmp_path) as server:
        assert b" 431 " in raw(server, (start + end).encode(), 4)
