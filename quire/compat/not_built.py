"""Names that scripts import and that are not built: each says so, and the way out, when used."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import NotSupported

_WEIGHTS = (
    "No weights are sent to other processes. Train beside the LLM (colocate): load_weights takes "
    "named tensors (docs/clients.md)."
)
_FETCHED = (
    "Nothing is fetched for a script. Open the file and pass what it holds, or give its URL in a "
    "message of chat() and its host in LLM(allowed_media_domains=[...])."
)
_MEDIA = "Media are read by the model's own processor: pass them with the prompt."
_OPTIONS = "Say it as options: LLM(max_model_len=..., block_size=...); docs/api.md lists them."
# Names by what to do instead.
REFUSED = {
    _WEIGHTS: "IPCTrainerSendWeightsArgs IPCWeightTransferEngine NCCLTrainerSendWeightsArgs "
    "NCCLWeightTransferEngine PyNcclCommunicator StatelessProcessGroup WeightTransferInitRequest "
    "WeightTransferUpdateRequest get_world_group",
    _FETCHED: "AudioAsset ImageAsset VideoAsset fetch_audio fetch_image fetch_video",
    _MEDIA: "MULTIMODAL_REGISTRY",
    _OPTIONS: "CacheConfig DeviceConfig LoRAConfig LoadConfig MultiModalConfig "
    "ObservabilityConfig ParallelConfig SchedulerConfig SpeculativeConfig",
}


class _Refusing(type):
    """Importing and naming such a class is fine; making one, or asking it for anything, is not."""

    way_out: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(f"{cls.__name__} is not built. {cls.way_out}")

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupported(f"{cls.__name__}.{name} is not built. {cls.way_out}")


for _way_out, _names in REFUSED.items():
    for _name in _names.split():
        globals()[_name] = _Refusing(_name, (), {"way_out": _way_out, "__module__": __name__})


class Worker:
    """What trainers change while they make an LLM, so that memory of their own is no error."""

    def _assert_memory_footprint_increased_during_profiling(self) -> None:
        """Nothing: what others have of a GPU does not count here."""


def initialize_ray_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Many machines behind one LLM."""
    raise NotSupported("Ray clusters are not built. Run one LLM per machine on its own prompts.")
