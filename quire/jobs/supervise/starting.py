"""Starts the engines of a job, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.errors import InvalidOption
from quire.jobs.options import JobOptions
from quire.replicas.engine_process import EngineProcess
from quire.replicas.places import Place
from quire.replicas.replica import EngineLink
from quire.replicas.wire import Message

Start = Callable[[Message], EngineLink]
_PATHS = ("tokenizer", "chat_template", "allowed_local_media_path", "download_dir")


@dataclass(frozen=True, slots=True)
class EngineStarts:
    """For each replica of a job, the first message to its engine and the way to start one."""

    openings: Sequence[Message]
    _starts: Sequence[Start]

    @classmethod
    def of(
        cls,
        options: JobOptions,
        opening: Message,
        command: Sequence[str],
        hear: Callable[[str], None],
    ) -> EngineStarts:
        """The same first message for all, each with the options for its share of the machine."""
        places = _places(options)
        openings = [
            {**opening, "options": {**place.options, **opening["options"]}} for place in places
        ]
        if options.ray is None:
            return cls(openings, [_here(place, command, hear) for place in places])
        openings = [with_whole_paths(one) for one in openings]
        return cls(openings, [_on_ray(options, command, hear)] * len(places))

    def start(self, number: int, opening: Message) -> EngineLink:
        return self._starts[number](opening)

    def start_all(self) -> list[EngineLink]:
        return [self.start(number, opening) for number, opening in enumerate(self.openings)]


def _places(options: JobOptions) -> tuple[Place, ...]:
    """Where each replica runs; on a Ray cluster, Ray decides."""
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


def with_whole_paths(opening: Message) -> Message:
    """The message with absolute paths: an actor has another working directory, where models/mine
    would be taken for the id of a model on the Hub."""
    options, adapters = opening["options"], opening["lora"]
    given = {name: options[name] for name in _PATHS if options.get(name)}
    return {
        **opening,
        "model": _whole(opening["model"]),
        "options": {**options, **{name: _whole(path) for name, path in given.items()}},
        "lora": {name: _whole(path) for name, path in adapters.items()},
    }


def _whole(given: str) -> str:
    return os.path.abspath(given) if os.path.exists(given) else given


def _on_ray(options: JobOptions, command: Sequence[str], hear: Callable[[str], None]) -> Start:
    from quire.replicas import ray_engine

    ray_engine.connect(str(options.ray))
    each = float(options.options.get("tensor_parallel_size", 1) or 1)
    on_gpus = ray_engine.cluster_gpus() > 0 and options.options.get("device") != "cpu"
    gpus = each if on_gpus else 0.0
    return lambda opening: ray_engine.RayEngine(opening, command=command, hear=hear, num_gpus=gpus)
