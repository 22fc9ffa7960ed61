"""What GGUF files of later families say in words of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_parts.rope import FactorRope
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from tests.parity.more_families import random_model
from tests.weights.gguf_cases import LATER_CASES


def test_factors_of_frequencies_leave_layers_without_positions_alone(tmp_path: Path) -> None:
    """EXAONE 4 of 32B has both."""
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["exaone4"]
    random_model(config).save_pretrained(tmp_path)
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = tmp_path / "m.gguf"
    write(tmp_path, path, config, arch, said, more={"rope_freqs.weight": factors})
    ropes = [one.attention.rope for one in spec_from_gguf(GgufFile(path)).layers]
    scalings = [rope and rope.scaling for rope in ropes]
    assert scalings == [FactorRope(tuple(factors.tolist())), None] * 2
    assert [rope is None for rope in ropes] == [False, True] * 2


def test_a_granite_hybrid_without_a_scale_of_scores_has_the_usual_one(tmp_path: Path) -> None:
    """Converters leave out what a config has not; it rotates heads unless the file denies it."""
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["granite hybrid"]
    random_model(config).save_pretrained(tmp_path)
    path, left_out = tmp_path / "m.gguf", ("attention.scale", "rope.scaling.finetuned")
    write(tmp_path, path, config, arch, {k: v for k, v in said.items() if k not in left_out})
    attention = spec_from_gguf(GgufFile(path)).layers[1].attention
    assert attention.scale == 0.25
    assert attention.rope is not None


def test_layers_that_guess_ahead_are_left_out_of_nemotron_h(tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["nemotron h, experts"]
    random_model(config).save_pretrained(tmp_path)
    ahead = {
        **said,
        "block_count": 7,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 0, 0, 6, 0, 0, 6],
        "feed_forward_length": [0, 32, 0, 0, 32, 0, 32],
    }
    made = {}
    for name, given in (("plain", said), ("ahead", ahead)):
        write(tmp_path, path := tmp_path / f"{name}.gguf", config, arch, given)
        made[name] = spec_from_gguf(GgufFile(path))
    assert made["ahead"] == made["plain"]


def test_a_file_of_states_alone_has_neither_heads_nor_feed_forwards(tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["mamba2"]
    random_model(config).save_pretrained(tmp_path)
    for key in ("attention.head_count", "feed_forward_length"):
        write(tmp_path, path := tmp_path / "m.gguf", config, arch, {**said, key: 4})
        with pytest.raises(UnsupportedModel, match=f"{key} must be 0, as its layers have nothing"):
            spec_from_gguf(GgufFile(path))
    write(tmp_path, path := tmp_path / "m.gguf", config, arch, {**said, "ssm.inner_size": 40})
    with pytest.raises(UnsupportedModel, match=r"ssm.inner_size must be a multiple of 16"):
        spec_from_gguf(GgufFile(path))


def test_nemotron_h_says_numbers_for_each_branch(tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["nemotron h"]
    random_model(config).save_pretrained(tmp_path)
    path = tmp_path / "m.gguf"
    write(tmp_path, path, config, arch, {**said, "feed_forward_length": 80})
    with pytest.raises(CorruptModel, match="nemotron_h.feed_forward_length must be a list of 9"):
        spec_from_gguf(GgufFile(path))
    groups = {"expert_group_count": 4}
    arch, config, said = LATER_CASES["nemotron h, experts"]
    random_model(config).save_pretrained(tmp_path)
    write(tmp_path, path, config, arch, {**said, **groups})
    with pytest.raises(UnsupportedModel, match="expert_group_count"):
        spec_from_gguf(GgufFile(path))


def test_llama4_of_128_experts_has_no_norms_of_heads(tmp_path: Path) -> None:
    """Which GGUF files do not say; those without chunks say a window of 0, and are refused."""
    from tests.weights.gguf_families import write

    arch, config, said = LATER_CASES["llama4"]
    config = type(config)(**{**config.to_dict(), "num_local_experts": 128})
    random_model(config).save_pretrained(tmp_path)
    path = tmp_path / "m.gguf"
    write(tmp_path, path, config, arch, {**said, "expert_count": 128})
    assert {one.attention.qk_norm for one in spec_from_gguf(GgufFile(path)).layers} == {None}
    write(tmp_path, path, config, arch, {**said, "attention.sliding_window": 0})
    with pytest.raises(UnsupportedModel, match="attention.sliding_window"):
        spec_from_gguf(GgufFile(path))
