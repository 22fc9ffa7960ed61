"""Ranks that each compute their share of a model make what the whole model makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig

from quire.backends.choose import kernels_for
from quire.errors import InvalidOption, NotSupported
from quire.executor.cpu.accuracy import hidden_states
from quire.families.registry import BY_MODEL_TYPE, FAMILIES
from quire.layer_parts.state import DeltaNetPlan, MambaPlan
from quire.layer_plan import AttentionPlan, Rope
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from quire.ranks.shares import ALONE, RankShare, check_ranks, of_rank
from quire.spec import ModelSpec
from quire.weights.cuts import cut_of
from quire.weights.hf_config import spec_from_hf
from quire.weights.load import cut_tensor, rank_weights
from quire.weights.names import weights_of
from quire.weights.parts import Weight
from tests.parity.families import FAMILIES as TINY
from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import LATENTS, MORE
from tests.parity.newest_families import NEWEST
from tests.ranks.threads import on_ranks
from tests.specs import small_spec

# Models that see or hear, whose text no other family has.
SEEING = {
    *("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl"),
    "whisper",
}
CONFIGS: dict[str, PretrainedConfig] = {
    **TINY,
    **MORE,
    **LATENTS,
    **BY_KIND,
    **WITH_STATES,
    **LATER,
    **NEWEST,
}
TEXT = [(7 * i + i * i) % 90 for i in range(40)]


def spec_of(config: PretrainedConfig) -> ModelSpec:
    architecture = BY_MODEL_TYPE[config.model_type].architectures[0]
    return spec_from_hf({**config.to_dict(), "architectures": [architecture]})


def random_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """Every number random, so that a part left out, or counted twice, shows. Where normed heads
    are multiplied without a factor, weights of their norms are small, as trained ones are: with
    large ones attention is to single tokens, and roundings grow from layer to layer."""
    generator = torch.Generator().manual_seed(5)
    made = {}
    for weight in weights_of(spec):
        drawn = torch.randn(weight.shape, generator=generator) * 0.2
        made[weight.name] = drawn + 1 if weight.name.endswith("norm.weight") else drawn
        if weight.name.endswith(".q_norm.weight") and spec.layers[0].attention.scale == 1.0:
            made[weight.name] *= 0.2
    return made


def build(spec: ModelSpec, weights: dict[str, Tensor], tp: TensorParallel) -> Decoder:
    shape = head_shape(spec, 16, torch.float32)
    kernels = kernels_for("cpu", shape, batch_invariant=False)
    return build_model(spec, weights, kernels, shape, max_len=64, tp=tp)


def share_of(spec: ModelSpec, weights: dict[str, Tensor], share: RankShare) -> dict[str, Tensor]:
    found = {}
    for weight in rank_weights(spec, share):
        tied_head = weight.name == "head.weight" and spec.tied_embeddings
        whole = weights["embed.weight" if tied_head else weight.name]
        found[weight.name] = cut_tensor(whole, cut_of(weight, spec, share)).clone()
    return found


@torch.inference_mode()
def logits_of(spec: ModelSpec, weights: dict[str, Tensor], tp: TensorParallel) -> Tensor:
    own = of_rank(spec, tp.share)
    model = build(own, share_of(spec, weights, tp.share), tp)
    return model.logits(hidden_states(model, own, TEXT))


def test_every_family_has_a_config_here() -> None:
    """But for those that read images or hear, whose text is computed by layers of others."""
    found = {spec_of(config).family for config in CONFIGS.values()}
    assert found | SEEING == {family.name for family in FAMILIES}


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_add_up_to_the_model(name: str) -> None:
    spec = spec_of(CONFIGS[name])
    weights = random_weights(spec)
    whole = logits_of(spec, weights, TensorParallel())
    scale = whole.std()
    for size in (2, 3, 4) if spec.keeps_states else (2, 4):
        made = on_ranks(size, lambda tp: logits_of(spec, weights, tp))
        for other in made[1:]:
            assert torch.equal(made[0], other)
        assert (made[0] - whole).abs().max() < 2e-4 * scale, size


def heads(num_heads: int, num_kv_heads: int) -> AttentionPlan:
    return AttentionPlan(num_heads, num_kv_heads, 16, 0.25, Rope(100.0, 16))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("counts", [(9, 3), (8, 8), (32, 8), (8, 1), (12, 2), (14, 2)])
def test_every_query_head_has_one_rank_and_its_own_kv_head(
    counts: tuple[int, int], size: int
) -> None:
    plan = heads(*counts)
    per_kv = counts[0] // counts[1]
    ranks = [RankShare(rank, size) for rank in range(size)]
    assert [h for one in ranks for h in one.heads(plan)] == list(range(counts[0]))
    owned = [h for one in ranks if one.counts_kv(plan) for h in one.kv_heads(plan)]
    assert owned == list(range(counts[1]))
    for one in ranks:
        kv = one.kv_heads(plan)
        assert {h // per_kv for h in one.heads(plan)} == set(kv)
        assert len(one.heads(plan)) % len(kv) == 0


@pytest.mark.parametrize("width", [80, 1536, 1000, 11008, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_widths_are_divided_in_tiles_and_none_is_lost(width: int, size: int) -> None:
    parts = [RankShare(rank, size).inner(width) for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(width))
    assert all(part for part in parts)
    if width >= 128 * size:
        assert all(part.start % 128 == 0 for part in parts)


def test_what_cannot_be_divided_is_refused_with_its_numbers() -> None:
    spec = small_spec()
    check_ranks(spec, 4)
    with pytest.raises(InvalidOption, match=r"=5 is more than 4 heads over 2 KV heads.*most 4"):
        of_rank(spec, RankShare(0, 5))
    assert of_rank(spec, ALONE) is spec
    narrow = small_spec(intermediate_size=3)
    with pytest.raises(InvalidOption, match=r"=4 is more than a feed-forward of width 3.*most 3"):
        check_ranks(narrow, 4)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "name", ["qwen3_5", "granite hybrid", "bamba, every bias, one group, tied", "mamba2"]
)
def test_every_head_of_a_state_has_one_rank_and_its_own_key(name: str, size: int) -> None:
    spec = spec_of(next(config for key, config in CONFIGS.items() if key.startswith(name)))
    spec = spec.with_attention(lambda one: replace(one, num_heads=16, num_kv_heads=16))
    whole = next(state for state in spec.states if state is not None)
    assert isinstance(whole, DeltaNetPlan | MambaPlan)
    heads, keys = whole.num_heads, whole.num_key_heads
    if size > heads:
        with pytest.raises(InvalidOption, match=f"={size} is more than.*heads over.*of states"):
            of_rank(spec, RankShare(0, size))
        return
    ranks = [RankShare(rank, size) for rank in range(size)]
    assert [h for one in ranks for h in one.heads_over(heads, keys)] == list(range(heads))
    for one in ranks:
        own = {h // (heads // keys) for h in one.heads_over(heads, keys)}
        assert own == set(one.keys(keys))
        numbers = [(s.num_heads, s.num_key_heads) for s in of_rank(spec, one).states if s]
        assert set(numbers) == {(len(one.heads_over(heads, keys)), len(own))}


def test_heads_of_a_gguf_file_in_turn_are_refused_with_the_way_out() -> None:
    spec = spec_of(CONFIGS["qwen3_5"])
    state = next(state for state in spec.states if state is not None)
    layer = replace(spec.layers[0], state=replace(state, in_turn=True))
    with pytest.raises(NotSupported, match=r"=2: this GGUF file.*Use the model's directory"):
        of_rank(replace(spec, layers=(layer,)), RankShare(0, 2))


class Latent(AttentionPlan):
    """A kind of attention that nothing here knows how to divide."""


@pytest.mark.parametrize("field", ["attention", "cross", "state", "beside", "embedding"])
def test_layers_of_another_kind_are_refused_by_name(field: str) -> None:
    """A part that ranks do not know must not be every rank's by mistake."""
    spec = small_spec(num_layers=1)
    strange: dict[str, Any] = {field: Latent(4, 2, 16, 0.25, Rope(100.0, 16))}
    layer = replace(spec.layers[0], **strange)
    with pytest.raises(NotSupported, match=r"=2: a layer with a Latent is not divided"):
        of_rank(replace(spec, layers=(layer,)), RankShare(0, 2))


def test_a_weight_that_is_not_known_is_not_given_to_every_rank() -> None:
    spec = small_spec()
    some = next(iter(weights_of(spec)))
    for name in ("layers.0.attn.gates.weight", "layers.0.mlp.latent.weight", "tower.weight"):
        with pytest.raises(NotSupported, match=name):
            cut_of(replace(some, name=name), spec, RankShare(0, 2))
    assert isinstance(some, Weight)
