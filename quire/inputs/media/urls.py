"""Media named by a URL: base64 in the URL itself, a file below the allowed folder, or a resource of
an allowed host. All URLs are parsed here; fetch.py fetches."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quire.errors import InvalidPrompt
from quire.inputs.media.allowed import Fetching
from quire.inputs.media.files import allowed_file


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A URL as it stands in a message."""

    url: str

    def read(self, folder: str | None, most: int, fetching: Fetching) -> bytes | Path:
        """The bytes at the URL, or the path of a file."""
        if self.url.lstrip()[:5].lower() == "data:":
            return _inline(self.url, most)
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise _refused(self.url, f"is no URL: {error}") from None
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise _refused(self.url, "names a file of another machine")
            return allowed_file(unquote(parts.path), folder)
        if parts.scheme in ("http", "https"):
            from quire.inputs.media.fetch import fetched  # sockets and TLS: few need them

            try:
                return fetched(parts, fetching)
            except ValueError as error:
                raise _refused(self.url, str(error)) from None
        raise _refused(self.url, "is neither data:, file: nor http(s):")


def _inline(url: str, most: int) -> bytes:
    """Decode a data: URL as browsers do: with line breaks, without its last "=", or percent-encoded
    (%2B). Also the URL-safe alphabet (- and _)."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise _refused(url, "holds no base64: it should be data:image/png;base64,...")
    data = "".join((unquote(data) if "%" in data else data).split()).rstrip("=")
    if len(data) > most // 3 * 4 + 4:
        raise _refused(url, f"holds more than {most:,} bytes")
    if "-" in data or "_" in data:
        data = data.translate({45: "+", 95: "/"})
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(url, f"is no base64: {error}") from None


def _refused(url: str, why: str) -> InvalidPrompt:
    shown = url if len(url) <= 80 else f"{url[:60]}..."
    return InvalidPrompt(f"the URL {shown!r} {why}", parameter="messages")
