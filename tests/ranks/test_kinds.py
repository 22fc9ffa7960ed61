"""Ranks of models that are more than text and tokens, and what is refused for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quire.errors import NotSupported
from quire.executor.ranks import gpu_exchange, nccl
from quire.ranks.shares import RankShare
from tests.pooling.tiny import DECODERS, ENCODERS, open_llm, texts, write_model
from tests.test_batch_processors import Counting
from tests.tiny_llm import tiny_llm


def test_decoders_embed_on_ranks(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    found = []
    for size in (1, 2):
        options = {"convert": "embed", "pooler_config": {"pooling_type": "MEAN"}}
        with open_llm(tmp_path, tensor_parallel_size=size, **options) as llm:
            outputs = llm.embed(texts(), use_tqdm=False)
            assert llm.get_world_size() == llm.get_world_size(include_dp=False) == size
            assert llm.llm_engine.vllm_config.parallel_config.tensor_parallel_size == size
        found.append(np.array([one.outputs.embedding for one in outputs]))
    assert np.abs(found[0] - found[1]).max() < 1e-5


def test_classes_of_logits_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="Counting edit the logits.*in other processes"):
        tiny_llm(tmp_path, tensor_parallel_size=2, logits_processors=[Counting])


def test_encoders_are_not_divided(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with pytest.raises(NotSupported, match="tensor_parallel_size=2 is not built for encoders"):
        open_llm(tmp_path, tensor_parallel_size=2)


def test_gpus_out_of_reach_need_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks do when a GPU says that it cannot read another's memory."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(gpu_exchange, "far_gpu", lambda own, size: 3)
    monkeypatch.setattr(nccl, "is_there", lambda: False)
    with pytest.raises(NotSupported, match="GPU 0 cannot read the memory of GPU 3.*no NCCL"):
        gpu_exchange.gpu_exchange(RankShare(), tmp_path / "meeting", 1024, lambda number: None)
