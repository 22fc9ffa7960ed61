"""Who prepares which rows, so that nobody waits behind rows that take longer than his own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from quire.replicas.wire import Message

FEW, MORE = 2, 4


class PreparingThreads:
    """Rows of batches come by the hundred, and wait there until they are wanted; a picture takes
    longer than a text, and one of a slow host longer than one that came along."""

    def __init__(self) -> None:
        self._text = ThreadPoolExecutor(FEW, "quire-prepare")
        self._media = ThreadPoolExecutor(MORE, "quire-prepare-media")
        self._fetched = ThreadPoolExecutor(MORE, "quire-fetch-media")
        self._batches = ThreadPoolExecutor(FEW, "quire-prepare-batches")
        self._batch_media = ThreadPoolExecutor(MORE, "quire-prepare-batch-media")

    def of(self, row: Message, *, background: bool) -> ThreadPoolExecutor:
        media = _media_parts(row)
        if background:
            return self._batch_media if media else self._batches
        if any(map(_is_fetched, media)):
            return self._fetched
        return self._media if media else self._text


def _media_parts(row: Message) -> list[Message]:
    contents = [m.get("content") for m in row.get("messages", ()) if isinstance(m, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if isinstance(part, dict) and part.get("type") != "text"]


def _is_fetched(part: Message) -> bool:
    urls = [one.get("url") if isinstance(one, dict) else one for one in part.values()]
    return any(isinstance(url, str) and url.lstrip()[:4].lower() == "http" for url in urls)
