"""The weights of a model on a GPU, in the form that its config asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.backends.ops import PackedMatrix
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.quantised.grouped import GroupedMatrix
from quire.base.notes import note
from quire.config import EngineConfig
from quire.errors import NotSupported
from quire.models.weight_parts import Weights
from quire.options.checks import CHECKPOINTS
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights, load_weights
from quire.weights.load_kept import dummy_kept_weights, load_kept_weights
from quire.weights.quantised.kept import Products
from quire.weights.quantised.unpack import QuantisedMatrix
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.backends.triton.kept_experts import KeptExperts

FP8_CAPABILITY = (8, 9)
EXPERTS_CAPABILITY = (9, 0)
# The share of free memory that dequantised copies beside 4-bit weights may take from the KV cache.
PLAIN_SHARE = 0.25
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+\.weight)")


def load_gpu_weights(
    files: ModelFiles, spec: ModelSpec, config: EngineConfig, share: RankShare = ALONE
) -> Weights:
    """All weights, or a rank's share of them."""
    device, is_dummy = torch.device(config.device), config.load_format == "dummy"
    dtype: torch.dtype = getattr(torch, config.dtype)
    if config.quantization in CHECKPOINTS and not is_dummy:
        kept = load_kept_weights(
            files, spec, dtype=dtype, device=device, products=_products(), share=share
        )
        return _for_products(kept, device, config)
    said = files.quantisation
    if config.quantization in CHECKPOINTS and said is not None:
        if share.size > 1:
            raise NotSupported(
                f"load_format='dummy' with quantization={config.quantization!r} for {share.size} "
                "ranks is not built. Leave quantization out."
            )
        made = dummy_kept_weights(
            spec, said, dtype=dtype, device=device, products=_products(), seed=config.seed
        )
        return _for_products(made, device, config)
    if is_dummy:
        return dummy_weights(spec, dtype=dtype, device=device, seed=config.seed, share=share)
    return load_weights(files, spec, dtype=dtype, device=device, share=share)


def _products() -> Products:
    capability = torch.cuda.get_device_capability()
    return Products(fp8=capability >= FP8_CAPABILITY, experts=capability >= EXPERTS_CAPABILITY)


def _for_products(
    weights: dict[str, Tensor | QuantisedMatrix], device: torch.device, config: EngineConfig
) -> dict[str, Tensor | PackedMatrix]:
    """Empties `weights`, so that no more than one of them is there in two forms."""
    from quire.backends.cuda_c.linear import CodesMatrix
    from quire.backends.triton.grouped import Scratch
    from quire.backends.triton.quantised import DeviceMatrix

    dtype: torch.dtype = getattr(torch, config.dtype)
    scratch = Scratch(device, dtype)
    made = dict(_experts(weights, dtype))
    for name, weight in weights.items():
        weights[name] = weight.narrowed() if isinstance(weight, GroupedMatrix) else weight
    packed = _packed(weights, dtype)
    keeps_plain = bool(packed) and _has_room(packed.values(), dtype, config)
    for name in tuple(weights):
        weight = weights.pop(name)
        if isinstance(weight, Tensor):
            made[name] = weight
        elif name in packed:
            made[name] = CodesMatrix.of(packed.pop(name), scratch, keeps_plain=keeps_plain)
        else:
            made[name] = DeviceMatrix(weight, scratch)
    return made


def _experts(
    weights: dict[str, Tensor | QuantisedMatrix], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor | PackedMatrix]]:
    """Takes experts out of `weights`. Quantised ones stay as they are if a kernel can multiply with
    those of all experts of a layer, else they are dequantised."""
    from quire.backends.triton.kept_experts import KeptExpert

    products: dict[str, list[str]] = {}
    for name in weights:
        if (found := _EXPERT.fullmatch(name)) is not None:
            products.setdefault(found[1] + found[3], []).append(name)
    for names in products.values():
        taken = [weights.pop(name) for name in names]
        kept = _kept_experts(taken, dtype)
        for index, (name, weight) in enumerate(zip(names, taken, strict=True)):
            if kept is not None:
                yield name, KeptExpert(kept, index)
            elif isinstance(weight, Tensor):
                yield name, weight
            else:
                yield name, weight.dequantised(dtype)


def _kept_experts(
    weights: list[Tensor | QuantisedMatrix], dtype: torch.dtype
) -> KeptExperts | None:
    """One product of all experts of a layer; None if there is none for these weights."""
    from quire.backends.triton.coded_experts import CodedExperts
    from quire.backends.triton.fp8_experts import Fp8Experts

    in_fp8 = [one for one in weights if isinstance(one, Fp8Matrix)]
    if len(in_fp8) == len(weights):
        return Fp8Experts.of(in_fp8, dtype)
    grouped = [one for one in weights if isinstance(one, GroupedMatrix)]
    if len(grouped) < len(weights):
        return None
    return CodedExperts.of(grouped, dtype)


def _packed(
    weights: Mapping[str, Tensor | QuantisedMatrix], dtype: torch.dtype
) -> dict[str, GroupedMatrix]:
    """The weights that the kernels of backends/cuda_c can multiply with, after loading these
    kernels; none if they cannot be loaded."""
    from quire.backends.cuda_c.linear import is_packed, load_kernels
    from quire.backends.cuda_c.nvrtc import NoCudaC

    found = {
        name: weight
        for name, weight in weights.items()
        if isinstance(weight, GroupedMatrix) and is_packed(weight, dtype)
    }
    try:
        load_kernels(((weight, "plain") for weight in found.values()), dtype)
    except NoCudaC as error:
        note(
            f"4-bit weights are multiplied with by slower kernels: {error} "
            "(quantization='none' dequantises them)"
        )
        return {}
    return found


def _has_room(packed: Iterable[GroupedMatrix], dtype: torch.dtype, config: EngineConfig) -> bool:
    """Whether dequantised copies of these weights, used in passes of many rows, take only a small
    share of the memory for the KV cache."""
    wanted = sum(matrix.shape[0] * matrix.shape[1] for matrix in packed) * dtype.itemsize
    free = torch.cuda.mem_get_info()[0] * config.gpu_memory_utilization
    fits = wanted <= free * PLAIN_SHARE
    how = "dequantised and kept beside them" if fits else "dequantised on the way"
    note(
        f"4-bit weights: few rows are multiplied with the codes, many with weights {how} "
        f"({wanted / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free)"
    )
    return fits
