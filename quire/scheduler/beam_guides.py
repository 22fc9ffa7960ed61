"""The grammars of beams: one that fails ends its search, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.scheduler.sequence import Guide
from quire.scheduler.stopping import FOLLOWED

Found = TypeVar("Found")


def ask(question: Callable[..., Found], *about: Any) -> Found:
    """Call a grammar. Its fault is raised as the error of this search: other searches go on."""
    found = for_row(FOLLOWED, question, *about)
    if isinstance(found, QuireError):
        raise found
    return found


def forked(guides: list[Guide | None], parents: list[int]) -> list[Guide | None]:
    """The guides of the next beams: the first child of a beam keeps its guide, further ones get a
    fork of it."""
    made: list[Guide | None] = []
    settled: set[int] = set()
    for parent in parents:
        guide = guides[parent]
        made.append(ask(guide.fork) if guide is not None and parent in settled else guide)
        settled.add(parent)
    return made


def completes(guide: Guide, token: int) -> bool:
    """Whether the text is all that its grammar wants once this token has come."""
    trial = guide.fork()
    return trial.accept(token) and trial.is_complete
