"""The LoRA adapters of a job: by name on the command line, by content in its manifest. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidAdapter, InvalidOption, ModelError

MOST_AT_ONCE = 8  # adapters in one batch, by default: each further one makes a batch slower
USUAL_RANK = 16


def parse_lora(given: Any) -> dict[str, str]:
    """["nice=/adapters/nice"] -> {"nice": "/adapters/nice"}; a mapping is taken as it is."""
    if isinstance(given, Mapping):
        return {str(name): str(path) for name, path in given.items()}
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise _wrong(given)
    found: dict[str, str] = {}
    for one in listed:
        name, equals, path = one.partition("=")
        if not equals or not name.strip() or not path:
            raise _wrong(one)
        if name.strip() in found:
            raise InvalidOption(f"--lora names {name.strip()!r} twice", parameter="lora", value=one)
        found[name.strip()] = path
    return found


def _wrong(given: Any) -> InvalidOption:
    return InvalidOption(
        f"--lora is NAME=PATH, the name of an adapter and its directory, not {given!r}",
        parameter="lora",
        value=given,
    )


def digests(lora: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each adapter's files; fetches adapters that are named by a Hub id."""
    if not lora:
        return {}
    from quire.adapters.files import digest_of, tensor_file  # a third of a start, for few jobs

    found = {}
    for name, path in lora.items():
        directory = _directory(path, options)
        try:
            tensor_file(directory)
            found[name] = digest_of(directory)
        except (ModelError, OSError) as error:
            raise InvalidAdapter(
                f"adapter {name!r}: {error}", parameter="lora", value=path
            ) from error
    return found


def engine_options(
    lora: Mapping[str, str], options: Mapping[str, Any], *, and_more: bool = False
) -> dict[str, Any]:
    """The options that an engine needs for these adapters, unless the user sets them; `and_more`:
    with room for adapters that are loaded later."""
    if not lora and not and_more:
        return {}
    from quire.adapters.ranks import highest_rank

    ranks = [highest_rank(_directory(path, options)) for path in lora.values()]
    return {
        "enable_lora": True,
        "max_loras": MOST_AT_ONCE if and_more else min(len(lora), MOST_AT_ONCE),
        "max_lora_rank": max(ranks + [USUAL_RANK] * and_more),
    }


def _directory(path: str, options: Mapping[str, Any]) -> Any:
    from quire.adapters.files import adapter_directory

    given = {"download_dir": options.get("download_dir"), "token": options.get("hf_token")}
    return adapter_directory(path, **given)
