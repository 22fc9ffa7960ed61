"""Thumbnails of the images in a job's rows, for its page.

They are made for the rows that are shown, one after the other, as long as there is room. A row has
none if its file is missing or broken, or if Pillow is not installed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import Fetching
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.images import EncodedImage
from quire.inputs.media.urls import MediaUrl
from quire.jobs.input.media import MOST_BYTES, MediaCells, folder_of
from quire.jobs.input.rows import BadRow
from quire.jobs.output.results import StoredRun

SIDE, QUALITY = 128, 70  # of a JPEG
MOST_OF_ROW, MOST_OF_PAGE = 4, 1000
MOST_CHARACTERS = 12 << 20  # of a page, in base64


class Thumbnails:
    """The pictures of one run's rows."""

    def __init__(self, run: StoredRun) -> None:
        manifest = run.manifest
        columns = None if manifest is None else manifest.image
        self._cells: MediaCells | None = None
        if manifest is not None and columns:
            self._folder = folder_of(Path(file.path) for file in manifest.inputs)
            self._cells = MediaCells({"image": tuple(columns)}, self._folder)
        self._num_left, self._room = MOST_OF_PAGE, MOST_CHARACTERS
        self._children = MediaChildren(most=1)

    def __enter__(self) -> Thumbnails:
        return self

    def __exit__(self, *_: object) -> None:
        self._children.close()

    def of(self, columns: Mapping[str, Any]) -> tuple[str, ...]:
        """JPEGs in base64; empty if nothing can be shown."""
        if self._cells is None or self._room <= 0:
            return ()
        made = []
        try:
            images = self._cells.of(columns).get("images", [])
            for image in images[: min(MOST_OF_ROW, self._num_left)]:
                made.append(self._small(image["url"]))
        except (BadRow, InvalidPrompt, NotSupported, OSError):
            return tuple(made)
        finally:
            self._num_left -= len(made)
            self._room -= sum(map(len, made))
        return tuple(made)

    def _small(self, url: str) -> str:
        read = MediaUrl(url).read(str(self._folder), MOST_BYTES, Fetching())
        image = EncodedImage.of(read, self._children).open()
        image.thumbnail((SIDE, SIDE))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=QUALITY)
        return base64.b64encode(file.getvalue()).decode("ascii")
