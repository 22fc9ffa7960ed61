"""Where the engines of a job are started: here, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.errors import InvalidOption
from quire.jobs.options import JobOptions
from quire.replicas.engine_process import EngineProcess
from quire.replicas.places import Place
from quire.replicas.replica import EngineLink
from quire.replicas.wire import Message

Start = Callable[[Message], EngineLink]


def engine_starts(
    options: JobOptions,
    places: Sequence[Place],
    command: Sequence[str],
    hear: Callable[[str], None],
) -> list[Start]:
    """For each replica, what starts an engine of it."""
    if options.ray is None:
        return [_here(place, command, hear) for place in places]
    from quire.replicas import ray_engine

    ray_engine.connect(options.ray)
    each = float(options.options.get("tensor_parallel_size", 1) or 1)
    on_gpus = ray_engine.cluster_gpus() > 0 and options.options.get("device") != "cpu"

    def start(opening: Message) -> EngineLink:
        gpus = each if on_gpus else 0.0
        return ray_engine.RayEngine(opening, command=command, hear=hear, num_gpus=gpus)

    return [start for _ in places]


def replica_places(options: JobOptions) -> tuple[Place, ...]:
    """Where each replica runs; on a Ray cluster, the cluster finds out."""
    if options.ray is None:
        return options.places()
    if options.gpus is not None:
        raise InvalidOption(
            "--gpus names GPUs of this machine, and --ray chooses them on the cluster: give "
            "--replicas instead.",
            parameter="gpus",
            value=options.gpus,
        )
    return (Place({}),) * (options.replicas or 1)


def _here(place: Place, command: Sequence[str], hear: Callable[[str], None]) -> Start:
    return lambda opening: EngineProcess(
        opening, command=command, hear=hear, environment=place.environment
    )
