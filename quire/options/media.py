"""Options about media: what an LLM allows of them, and how these are read."""

from __future__ import annotations

from typing import Any

from quire.errors import InvalidOption
from quire.options import checks
from quire.options.checks import mapping
from quire.options.option import honoured
from quire.params.rules import fail

KINDS = ("image", "audio", "video")


def limit_mm_per_prompt(name: str, value: Any) -> dict[str, int] | None:
    """{"image": 4}, or {"image": {"count": 4, ...}} as vLLM has it, whose sizes only say how much
    memory it sets aside. 0 leaves the tower unloaded."""
    limits = {}
    for kind, given in mapping(name, value).items():
        if kind not in KINDS:
            fail(InvalidOption, name, f"a dict with keys among {', '.join(KINDS)}", value)
        count = given.get("count", 999) if isinstance(given, dict) else given
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            fail(InvalidOption, name, "a dict of whole numbers from 0", value)
        limits[kind] = count
    return limits or None


def folder(name: str, value: Any) -> str | None:
    """A path; an empty one is none."""
    return None if value == "" else checks.text(name, value)


def domains(name: str, value: Any) -> tuple[str, ...]:
    """Names of hosts, as a list; name:port where the port is not the scheme's own."""
    given: list[Any] = list(value) if isinstance(value, list | tuple | set) else [None]
    if not all(isinstance(one, str) and one and not set(one) & set("/*@ ") for one in given):
        fail(InvalidOption, name, 'a list of names of hosts, such as "cdn.example.com"', value)
    return tuple(given)


MEDIA_OPTIONS = (
    honoured(
        "limit_mm_per_prompt",
        {},
        limit_mm_per_prompt,
        "Media of a kind that one prompt may have, 999 by default; 0 leaves the tower unloaded.",
    ),
    honoured(
        "language_model_only",
        False,
        checks.flag,
        "Text alone is read, and the tower left unloaded.",
    ),
    honoured(
        "allowed_local_media_path",
        "",
        folder,
        "The folder that files named in prompts are read from; none by default.",
    ),
    honoured(
        "allowed_media_domains",
        None,
        domains,
        "Hosts that media are fetched from, at the scheme's own port or as name:port; none by "
        "default, and vLLM's None means all.",
    ),
    honoured(
        "mm_processor_kwargs",
        None,
        mapping,
        "Options of the model's processor; those of a prompt go before these.",
    ),
    honoured(
        "interleave_mm_strings",
        False,
        checks.flag,
        "Where a chat template takes text alone, placeholders stand where their parts stood "
        "instead of before the text.",
    ),
    honoured(
        "enable_mm_embeds",
        False,
        checks.flag,
        "Images may come as embeddings: tensors of torch, in place of what the tower would make. "
        "They are checked by shape alone, so only where those who write prompts are trusted.",
    ),
)
