"""Names that scripts import but that are not built: their use raises an error that says so."""

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
# What to do instead -> names.
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
    """A class of this kind can be imported and named; creating or using it raises an error."""

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
    """Trainers patch this class while they make an LLM, so that their own memory is no error."""

    def _assert_memory_footprint_increased_during_profiling(self) -> None:
        """Does nothing: memory that others use on a GPU is not counted."""


def initialize_ray_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not built: many machines behind one LLM."""
    raise NotSupported("Ray clusters are not built. Run one LLM per machine on its own prompts.")
