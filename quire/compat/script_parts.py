"""Small things that scripts import beside the LLM: a flag parser, ids, a logger, the device."""

from __future__ import annotations

import logging
import random
import socket
import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from enum import Enum, IntEnum, StrEnum
from typing import Any


class FlexibleArgumentParser(ArgumentParser):
    """An ArgumentParser that reads --max_model_len as --max-model-len."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
        words = sys.argv[1:] if args is None else args
        flags = {word.partition("=")[0] for word in words}
        if "--config" in flags - self._option_string_actions.keys():
            self.error("--config is not read here: write what is in the file as flags")
        found: tuple[Namespace, list[str]] = super().parse_known_args(
            [self._dashed(word) for word in words], namespace
        )
        return found

    def _dashed(self, word: str) -> str:
        flag, equals, value = word.partition("=")
        dashed = flag.replace("_", "-")
        known = self._option_string_actions
        if not flag.startswith("--") or flag in known or dashed not in known:
            return word
        return f"{dashed}{equals}{value}"


class UsageContext(StrEnum):
    """The purpose of an engine; quire reports no usage, so it has no effect."""

    LLM_CLASS = "LLM_CLASS"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


# Values in a CompilationConfig: how much vLLM compiles (CompilationLevel in older scripts), and
# which steps it captures. quire decides both itself.
CompilationMode = IntEnum(
    "CompilationMode", "NONE STOCK_TORCH_COMPILE DYNAMO_TRACE_ONCE VLLM_COMPILE", start=0
)
CompilationLevel = IntEnum(
    "CompilationLevel", "NO_COMPILATION DYNAMO_AS_IS DYNAMO_ONCE PIECEWISE", start=0
)
CUDAGraphMode = Enum(
    "CUDAGraphMode", "NONE PIECEWISE FULL FULL_DECODE_ONLY FULL_AND_PIECEWISE", start=0
)


class Platform:
    """Facts about the device that scripts read before they make an LLM."""

    @property
    def device_type(self) -> str:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    device_name = device_type

    def is_cuda(self) -> bool:
        return self.device_type == "cuda"

    def is_cpu(self) -> bool:
        return not self.is_cuda()

    is_cuda_alike = is_cuda

    def _not_built_for(self) -> bool:
        return False

    is_rocm = is_tpu = is_xpu = is_hpu = is_neuron = is_out_of_tree = _not_built_for

    def device_count(self) -> int:
        import torch

        return torch.cuda.device_count() if self.is_cuda() else 1

    def get_device_name(self, device_id: int = 0) -> str:
        import torch

        return torch.cuda.get_device_name(device_id) if self.is_cuda() else "cpu"


current_platform = Platform()


def cuda_device_count_stateless() -> int:
    """How many GPUs there are."""
    import torch

    return torch.cuda.device_count()


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


class Counter:
    """Returns 0, 1, 2, ... as numbers for requests."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        self.counter += 1
        return self.counter - 1

    def reset(self) -> None:
        self.counter = 0


def print_embeddings(embeds: list[float], prefix: str = "Embeddings") -> None:
    """Print the first 16 numbers, and how many there are."""
    shown = ", ".join(map(str, embeds[:16])) + (", ..." if len(embeds) > 16 else "")
    print(f"{prefix}: [{shown}] (size={len(embeds)})")  # noqa: T201


def set_random_seed(seed: int | None) -> None:
    """Seed Python, numpy and torch for the script's own draws; the engine has LLM(seed=...)."""
    if seed is not None:
        import numpy as np
        import torch

        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)


def random_uuid() -> str:
    return uuid.uuid4().hex


def get_ip() -> str:
    """An address of this machine; that of the loopback if its name has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def get_distributed_init_method(ip: str, port: int) -> str:
    """The address at which processes of torch.distributed meet."""
    return f"tcp://{f'[{ip}]' if ':' in ip else ip}:{port}"


def get_open_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port
