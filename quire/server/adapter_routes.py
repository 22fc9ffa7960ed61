"""Loading and unloading adapters while the server runs, at the same paths as vLLM's.

These routes exist only if --lora-folder names the folder whose adapters may be loaded. All keys may
use a loaded adapter, as those that the server was started with; only the key that loaded it may
replace or unload it.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from quire.openai_api.errors import ApiError, bad, not_found
from quire.openai_api.field import checked_fields, plain_body
from quire.params.rules import show
from quire.server.adapters import Loaded
from quire.server.reading import JSON_REFUSALS, read_json
from quire.server.route import ApiRoute
from quire.server.services import CALL_REFUSALS, Services, key_of

MOST_LOADED, LONGEST_NAME = 1000, 200
_LOAD = plain_body(
    [
        ("lora_name", "text", "What requests call it from now on, as their model."),
        ("lora_path", "text", "Its directory, in the folder that the server was started with."),
    ],
    [("load_inplace", "true or false", "In place of the one of this name, if there is one.")],
)
_UNLOAD = plain_body(
    [("lora_name", "text", "The name it was loaded under.")],
    [("lora_int_id", "a whole number", "Not looked at.")],
)


def routes(services: Services) -> list[ApiRoute]:
    if services.settings.lora_folder is None:
        return []
    folder, adapters = services.settings.lora_folder.resolve(), services.adapters

    async def load(request: Request) -> Response:
        given = checked_fields(_LOAD, await read_json(request))
        name, key_id = given["lora_name"], key_of(request)
        _check_name(name, services.settings.names)
        path = _inside(folder, given["lora_path"])
        async with adapters.changing:
            held = adapters.loaded.get(name)
            if held is not None and not (given.get("load_inplace") and held.key_id == key_id):
                raise bad(
                    f"an adapter {show(name)} is loaded; unload it, or set load_inplace, which "
                    "only the key may that loaded it",
                    param="lora_name",
                )
            if held is None and len(adapters.loaded) >= MOST_LOADED:
                raise bad(f"{MOST_LOADED:,} adapters are loaded, which is the most")
            try:
                await services.engine.call("load_adapter", name=name, path=str(path))
            except ApiError as error:
                error.message = error.message.replace(f"{folder}/", "")  # clients need not know it
                raise
            adapters.put(name, Loaded(str(path), key_id))
        return PlainTextResponse(f"Success: LoRA adapter {name!r} added successfully.")

    async def unload(request: Request) -> Response:
        given = checked_fields(_UNLOAD, await read_json(request))
        name = given["lora_name"]
        async with adapters.changing:
            held = adapters.loaded.get(name)
            if held is None or held.key_id != key_of(request):
                raise not_found(
                    f"no adapter {show(name)} was loaded with this key",
                    param="lora_name",
                    code="adapter_not_found",
                )
            adapters.drop(name)  # new requests cannot use it; running ones continue with it
            await services.engine.call("unload_adapter", name=name)
        return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")

    refusals, text = JSON_REFUSALS | CALL_REFUSALS, ("text/plain",)
    return [
        ApiRoute(
            *("POST", "/v1/load_lora_adapter", load), body=_LOAD, refusals=refusals, answers=text
        ),
        ApiRoute(
            *("POST", "/v1/unload_lora_adapter", unload),
            body=_UNLOAD,
            refusals=refusals | {404},
            answers=text,
        ),
    ]


def _check_name(name: str, taken: tuple[str, ...]) -> None:
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        rule = f"lora_name is a text of 1 to {LONGEST_NAME} characters that can be shown"
        raise bad(f"{rule}, not {show(name)}", param="lora_name")
    if name in taken:
        raise bad(f"the server was started with the name {show(name)}", param="lora_name")


def _inside(folder: Path, given: str) -> Path:
    """The directory that a body names, links followed; one outside the folder is not found."""
    try:
        path = (folder / given).resolve()
        found = path != folder and path.is_relative_to(folder) and path.is_dir()
    except (OSError, ValueError, RuntimeError):  # a long name, a NUL, a cycle of links
        found = False
    if not found:
        raise bad(
            f"lora_path {show(given)} is no directory in the folder whose adapters may be loaded",
            param="lora_path",
        )
    return path
