"""Environment variables that launchers of other programs leave. Our engines must not read them:
they would take themselves for a rank of some distributed run."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_BEGINNINGS = ("MASTER_", "TORCHELASTIC_", "VLLM_")


def without_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in _NAMES and not name.startswith(_BEGINNINGS)
    }
