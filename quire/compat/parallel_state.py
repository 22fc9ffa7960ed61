"""Ways in which scripts take process groups apart after an LLM. quire makes none, so there is
nothing to do: `LLM.close()` frees everything."""

from __future__ import annotations


def destroy_model_parallel() -> None:
    """Nothing."""


def destroy_distributed_environment() -> None:
    """Nothing."""


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Nothing."""
