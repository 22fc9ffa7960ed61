"""Functions by which scripts destroy process groups after an LLM. quire makes none, so they do
nothing: `LLM.close()` frees everything."""

from __future__ import annotations


def destroy_model_parallel() -> None:
    """Does nothing."""


def destroy_distributed_environment() -> None:
    """Does nothing."""


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Does nothing."""
