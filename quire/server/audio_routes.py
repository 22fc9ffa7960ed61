"""/v1/audio/transcriptions and /v1/audio/translations: the text of a sound that a form holds. The
sound is on disk while it is transcribed. It is cut into pieces, each a row of the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequest, NotSupported
from quire.inputs.transcripts import Transcript
from quire.jobs.input.sounds import pieces_of
from quire.openai_api.errors import ApiError, bad, not_supported
from quire.openai_api.form_fields import FORMS
from quire.openai_api.outputs import Output
from quire.openai_api.shapes import Transcription, VerboseTranscription
from quire.openai_api.transcripts import (
    FIELDS,
    TranscriptAsked,
    read_transcript_form,
    text_delta,
    text_done,
    transcription,
    verbose_transcription,
)
from quire.server.answering import whole_output
from quire.server.batch_service import BatchService
from quire.server.events import EventResponse, event_of, unless_gone
from quire.server.file_routes import limits_of
from quire.server.multipart import FormReader, form_schema
from quire.server.receiving import FORM_REFUSALS, receive
from quire.server.replies import JSON, json_response
from quire.server.route import EVENTS, ApiRoute
from quire.server.services import ROW_REFUSALS, Services, key_of

TEXT = "text/plain"
PIECES_AT_ONCE = 16  # of one sound
CUT_AT_ONCE = 2  # sounds that are decoded at once, each by a process of its own
Piece = dict[str, Any]


def routes(services: Services, stored: BatchService) -> list[ApiRoute]:
    return AudioRoutes(stored, services).routes()


class AudioRoutes:
    def __init__(self, service: BatchService, services: Services) -> None:
        self._service, self._services = service, services

    def routes(self) -> list[ApiRoute]:
        return [
            ApiRoute(
                *("POST", path, self._handler(path)),
                form=form_schema(file="file", known=FORMS[path], required=()),
                refusals=FORM_REFUSALS | ROW_REFUSALS | {404},
                answers=(JSON, TEXT, EVENTS),
                shape=(Transcription, VerboseTranscription),
                needs_model=True,
            )
            for path in FORMS
        ]

    def _handler(self, path: str) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Any:
            return await self._answer(path, request)

        return handle

    async def _answer(self, path: str, request: Request) -> Any:
        """Answer, then remove the file. A stream is transcribed while the client reads it."""
        self._check_model()  # before the body is read
        content_type = request.headers.get("content-type", "")
        reader = FormReader(content_type, file="file", known=FORMS[path])
        limits = await limits_of(self._service, key_of(request))
        received = await receive(request, reader, self._service.storage, limits)
        sound, is_kept = self._service.storage.file(received.storage), False
        try:
            names = self._services.names
            asked = read_transcript_form(path, received.form.fields, received.form.lists, names)
            await self._services.engine.ready()
            if asked.stream:
                is_kept = True
                return EventResponse(self._events(asked, sound, received.storage, key_of(request)))
            work = self._whole(asked, sound, key_of(request))
            return _response(asked, await unless_gone(request.receive, work))
        finally:
            if not is_kept:
                await self._remove(received.storage)

    async def _remove(self, storage: str) -> None:
        await asyncio.to_thread(self._service.storage.remove_file, storage)

    async def _whole(self, asked: TranscriptAsked, sound: Path, key_id: str) -> Transcript:
        made, pieces = Transcript(), await self._cut(sound)
        async with aclosing(self._heard(asked, pieces, key_id)) as heard:
            async for piece, output in heard:
                _add(made, piece, output)
        return made

    async def _events(
        self, asked: TranscriptAsked, sound: Path, storage: str, key_id: str
    ) -> AsyncGenerator[bytes, None]:
        made = Transcript()
        try:
            pieces = await self._cut(sound)
            async with aclosing(self._heard(asked, pieces, key_id)) as heard:
                async for piece, output in heard:
                    before = made.text
                    _add(made, piece, output)
                    if new := made.text[len(before) :]:
                        yield event_of(text_delta(new))
            yield event_of(text_done(made))
        finally:
            await self._remove(storage)

    async def _cut(self, sound: Path) -> list[Piece]:
        """The pieces of a sound, each short enough for the model."""
        loop, seconds = asyncio.get_running_loop(), self._check_model()["sound_seconds"]
        try:
            return await loop.run_in_executor(self._cutting, pieces_of, sound, seconds)
        except InvalidRequest as error:
            raise bad(str(error), param="file") from None
        except NotSupported as error:
            raise not_supported(str(error), param="file") from None

    def _check_model(self) -> Mapping[str, Any]:
        """The facts of a model that transcribes; empty while it loads."""
        facts = self._services.engine.facts
        if facts and facts.get("sound_seconds") is None:
            raise not_supported(
                "the served model transcribes nothing; serve one whose decoder attends to sounds"
            )
        return facts

    @cached_property
    def _cutting(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(CUT_AT_ONCE, "quire-cut")

    async def _heard(
        self, asked: TranscriptAsked, pieces: Sequence[Piece], key_id: str
    ) -> AsyncGenerator[tuple[Piece, Output], None]:
        """The text of each piece, in order; several are transcribed at once."""
        services = self._services
        rows = asked.rows(pieces, services.names)
        tasks: deque[asyncio.Task[Output]] = deque()
        left = iter(rows)
        try:
            for piece in pieces:
                while len(tasks) < PIECES_AT_ONCE and (row := next(left, None)) is not None:
                    tasks.append(
                        asyncio.create_task(whole_output(services, row, "interactive", key_id))
                    )
                yield piece, await tasks[0]
                tasks.popleft()
        except ApiError as error:
            raise error.named(FIELDS) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _add(made: Transcript, piece: Piece, output: Output) -> None:
    if (heard := output.heard) is not None:
        made.add_piece(piece["start"], piece["end"], heard.language, heard.segments)


def _response(asked: TranscriptAsked, made: Transcript) -> Response:
    if asked.format == "json":
        return json_response(transcription(made))
    if asked.format == "verbose_json":
        return json_response(verbose_transcription(made, asked))
    return Response(made.as_text(asked.format), media_type=TEXT)
