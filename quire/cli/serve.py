"""`quire serve`: an OpenAI-compatible server for one model."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli import job_options as o
from quire.cli.paths import directory, named, path
from quire.cli.terminal import say
from quire.jobs.run_options import SAMPLING_FLAGS
from quire.session.collector import lasts_from_now_on, rare_full_collections

if TYPE_CHECKING:
    from quire.server.serve import Serving

_MODEL_HELP = "An alias (smollm2), a path or a Hub id."
Model = Annotated[str, typer.Argument(help=_MODEL_HELP, callback=named)]
Names = list[str] | None
_FOLDER_HELP = "Adapters in it may be loaded over HTTP while it runs."
_DATA_HELP = "Folder of keys, files and batches."
DataFolder = Annotated[Path | None, typer.Option(help=_DATA_HELP, parser=path)]
LoraFolder = Annotated[Path | None, typer.Option(help=_FOLDER_HELP, parser=directory)]
GIB = 1 << 30
# Not in QUIRE_HOME, which may be deleted at any time: these are files of users.
DATA = Path.home() / ".local" / "share" / "quire" / "serve"
# Python's switch interval (5 ms by default): a request may wait several times for other threads.
SWITCH_SECONDS = 0.0005


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[Names, typer.Option(help="What requests call the model; repeatable.")] = None,
    data: DataFolder = None,
    api_key: Annotated[Names, typer.Option(help="A further key of your own; repeatable.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make one more key.")] = False,
    no_key: Annotated[bool, typer.Option("--no-key", help="All on this machine may call.")] = False,
    max_queue: Annotated[int, typer.Option(min=1, help="Answers that may wait or run.")] = 1024,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish when stopped.")] = 30.0,
    allowed_host: Annotated[Names, typer.Option(help="A further Host; repeatable.")] = None,
    allowed_origin: Annotated[Names, typer.Option(help="Its pages may call; repeatable.")] = None,
    max_file_gib: Annotated[float, typer.Option(min=0.001, help="Of one upload.")] = 2.0,
    quota_gib: Annotated[
        float | None, typer.Option(min=0.001, help="Of all files of a key; none: the disk.")
    ] = None,
    vllm_metrics: Annotated[
        bool, typer.Option("--vllm-metrics", help="Metrics under vLLM's names too.")
    ] = False,
    lora: Annotated[Names, typer.Option(help="An adapter as a model: NAME=PATH.")] = None,
    lora_folder: LoraFolder = None,
    option: Annotated[Names, typer.Option(help=SAMPLING_FLAGS["option"].help)] = None,
    tensor_parallel_size: o.Ranks = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    _check_packages()
    from quire.jobs.adapters import engine_options, parse_lora
    from quire.server.keys import Keys, open_keys
    from quire.server.serve import Serving
    from quire.server.services import Settings

    folder = data or DATA
    keys, made = (Keys(), "") if no_key else open_keys(folder, api_key or (), more=new_key)
    adapters = parse_lora(lora or [])
    options = o.engine_options(option, tensor_parallel_size=tensor_parallel_size)
    names = tuple(name or (model,))
    if clash := sorted(adapters.keys() & {*names}):
        raise typer.BadParameter(f"{clash[0]!r} is the model's own name", param_hint="--lora")
    settings = Settings(
        model=model,
        names=(*names, *adapters),
        lora=adapters,
        lora_folder=lora_folder,
        data_dir=folder,
        host=host,
        port=port,
        options={**engine_options(adapters, options, and_more=bool(lora_folder)), **options},
        max_queue=max_queue,
        grace=grace,
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(map(_origin, allowed_origin or ())),
        vllm_metrics=vllm_metrics,
        max_file_bytes=int(max_file_gib * GIB),
        quota_bytes=None if quota_gib is None else int(quota_gib * GIB),
    )
    serving = Serving(settings, keys)
    stored = f"the one made first ({folder / 'keys'} has its hash; --new-key adds one)"
    key = "none is needed" if no_key else made or ("yours" if api_key else stored)
    _run(serving, key, made)


def _origin(given: str) -> str:
    """The origin in the form that browsers send; another form would never match."""
    if not re.fullmatch(r"https?://[^/?#@\s]+", given.lower()):
        raise typer.BadParameter(
            f"an origin is https://NAME or http://NAME:PORT, with nothing behind it, not {given!r}",
            param_hint="--allowed-origin",
        )
    return given.lower()


def _run(serving: Serving, key: str, made: str) -> None:
    _allow_connections()
    sys.setswitchinterval(SWITCH_SECONDS)
    lasts_from_now_on()  # full garbage collections would delay all streams
    with rare_full_collections():
        serving.run(lambda: _tell(serving, key, made))


def _allow_connections() -> None:
    """Raise the limit of open files. The soft limit is 1,024 on most systems, for programs that
    call select(), so a single client could block all others with so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names no hard limit, and takes no more than this.
    most = 10_240 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _check_packages() -> None:
    try:
        import quire.server.serve  # noqa: F401
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            f"the package {error.name} is missing; pip install 'quire-llm[server]' brings all that "
            "a server needs",
            param_hint="serve",
        ) from None


def _tell(serving: Serving, key: str, made: str) -> None:
    if made:  # a new key is stored only after it was shown
        from quire.server.keys import keep

        keep(serving.settings.data_dir, made)
    say(f"address  {serving.address}/v1")
    say(f"model    {serving.settings.names[0]}")
    say(f"key      {key}")
    say(f"page     {serving.address}/")
