"""LoRA adapters on ranks: each rank has of them what it has of the products that they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM, SamplingParams
from quire.adapters.read import AdapterWeights
from quire.adapters.sites import EMBEDDING, sites_of
from quire.backends.adapter_ops import Added, OwnNumbers
from quire.config import AdapterOptions
from quire.executor.ranks.adapters import SentAdapters, share_of, site_cuts
from quire.ranks.shares import RankShare, of_rank
from quire.spec import ModelSpec
from quire.weights.load import cut_tensor
from tests.adapters.conftest import TARGETS
from tests.adapters.peft_files import make_peft, named, open_llm, random_model
from tests.parity.families import FAMILIES
from tests.ranks.test_shares import CONFIGS, spec_of

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=1)
PROMPTS = [[(5 * i + j) % 60 + 1 for j in range(6 + 7 * i)] for i in range(8)]


def random_adapter(spec: ModelSpec) -> AdapterWeights:
    """Something for every part of every product."""
    made, sites = torch.Generator().manual_seed(2), sites_of(spec).sites
    added = {}
    for name, site in sites.items():
        first, parts = 0, []
        for index, rows in enumerate(site.rows):
            a, b = (torch.randn(shape, generator=made) for shape in ((3, site.columns), (rows, 3)))
            parts.append(Added(index, first, a, b, torch.rand(rows, generator=made)))
            first += rows
        if name != EMBEDDING:
            added[name] = tuple(parts)
    return AdapterWeights(added)


def written(added: tuple[Added, ...], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What is added to a weight, and the factor of each row."""
    change, factor = torch.zeros(shape), torch.ones(shape[0])
    for one in added:
        rows = slice(one.first, one.first + len(one.b))
        change[rows] += one.b @ one.a
        assert one.factor is not None
        factor[rows] = one.factor
    return change, factor


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3", "phi3, window 9", "qwen2 moe", "gpt2", "gpt neox", "qwen3_next", "qwen3_5"),
        "deepseek v2 lite",
        *("bamba, every bias, one group, tied, all turned", "lfm2"),
    ],
)
def test_a_rank_adds_its_share_of_what_is_added_to_each_weight(name: str, size: int) -> None:
    spec = spec_of(CONFIGS[name])
    whole, sites = random_adapter(spec), sites_of(spec).sites
    for rank in range(size):
        share = RankShare(rank, size)
        cuts = site_cuts(spec, share)
        own = share_of(whole, cuts, is_first=rank == 0)
        own_sites = sites_of(of_rank(spec, share)).sites
        for site, added in whole.added.items():
            shape = (sum(sites[site].rows), sites[site].columns)
            change, factor = written(added, shape)
            expected = cut_tensor(change, cuts[site])
            found = written(own.added[site], tuple(expected.shape))
            assert torch.equal(found[0], expected), site
            rows = torch.cat([factor[r.start : r.stop] for r in cuts[site].rows])
            assert torch.equal(found[1][: len(rows)], rows), site
            if site != "head":  # whose rows are filled up
                assert [len(one.b) for one in own.added[site]] == list(own_sites[site].rows)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "name",
    [
        *("llama untied, every bias", "qwen2 moe", "gpt2"),
        "granite hybrid, experts, every bias, rope, untied",
    ],
)
def test_ranks_together_have_what_an_adapter_has_of_its_own(name: str, size: int) -> None:
    """What ranks make of their shares, added up where they add up, is what the whole makes."""
    spec, made = spec_of(CONFIGS[name]), torch.Generator().manual_seed(4)
    cuts = [site_cuts(spec, RankShare(rank, size)) for rank in range(size)]
    for site, found in sites_of(spec).sites.items():
        if site == EMBEDDING:
            continue
        rows, columns = sum(found.rows), found.columns
        some = torch.randperm(rows, generator=made)[: max(1, rows // 2)]
        weight = torch.randn(len(some), columns, generator=made)
        own = OwnNumbers(some, weight, torch.randn(rows, generator=made))
        x, base = torch.randn(columns, generator=made), torch.randn(rows, columns, generator=made)
        whole = base.clone()
        whole[some] = weight
        expected, parts, divided = whole @ x + own.offset, [], False
        for rank in range(size):
            cut = cuts[rank].get(site)
            assert cut is not None, site
            given = AdapterWeights({}, {site: own})
            share = share_of(given, {site: cut}, is_first=rank == 0).own[site]
            mine = cut_tensor(base, cut)
            if share.rows is not None and share.weight is not None:
                mine[share.rows] = share.weight
            columns_of = cut.columns or range(columns)
            y = mine @ x[columns_of.start : columns_of.stop]
            y = y if share.offset is None else y + share.offset
            divided = cut.columns is not None
            places = torch.cat([torch.arange(r.start, r.stop) for r in cut.rows])
            parts.append((places, y[: len(places)]))
        if divided:
            assert torch.allclose(sum(y for _, y in parts), expected, atol=1e-4), site
            continue
        together = torch.full((rows,), float("nan"))
        for places, y in parts:
            together[places] = y
        assert torch.allclose(together, expected, atol=1e-4), site


def test_ranks_keep_as_many_as_main_memory_may() -> None:
    sent = SentAdapters(AdapterOptions(max_loras=2, max_lora_rank=8, max_cpu_loras=2))
    assert [sent.use(number) for number in (1, 2, 1, 3, 1, 2)] == [(), (), (), (2,), (), (3,)]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Any]]]:
    """A base, and for each prompt none or an adapter: plain, DoRA, of head and embedding too."""
    folder = tmp_path_factory.mktemp("adapters")
    model = random_model(FAMILIES["qwen3"])
    model.save_pretrained(folder / "base")
    kinds: list[dict[str, Any]] = [
        {"targets": TARGETS},
        {"targets": TARGETS, "use_dora": True, "seed": 2},
        {"targets": (*TARGETS, "lm_head", "embed_tokens"), "seed": 3, "use_rslora": True},
    ]
    pefts = [make_peft(model, rank=2 + i, **kind) for i, kind in enumerate(kinds)]
    asked = [named(one.save(folder / f"a{i}"), i + 1) for i, one in enumerate(pefts)]
    own = make_peft(model, ("o_proj",), seed=4, bias="all", modules_to_save=["lm_head", "norm"])
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in ("lm_head.weight", "model.norm.weight"):
            own.more[name] = parameter.detach() + 0.3 * torch.randn_like(parameter)
    for module, b in own.b.items():
        own.more[f"{module}.lora_B.bias"] = torch.randn(len(b))
    asked.append(named(own.save(folder / "own"), 4))
    yield folder / "base", [(None, *asked)[i % 5] for i in range(len(PROMPTS))]


def answers(llm: LLM, asked: list[Any]) -> tuple[list[list[int]], list[float]]:
    outputs = llm.generate(PROMPTS, GREEDY, lora_request=asked, use_tqdm=False)
    made = [one.outputs[0] for one in outputs]
    scores = [p[t].logprob for a in made for p, t in zip(a.logprobs, a.token_ids, strict=True)]
    return [list(a.token_ids) for a in made], scores


@pytest.mark.parametrize("options", [{}, {"max_loras": 1, "max_cpu_loras": 1}])
def test_rows_with_adapters_draw_on_ranks_what_they_draw_on_one(
    options: dict[str, Any], shelf: tuple[Path, list[Any]]
) -> None:
    base, asked = shelf
    with open_llm(base, **options) as llm:
        ids, scores = answers(llm, asked)
        plain, _ = answers(llm, [None] * len(PROMPTS))
    assert ids != plain
    with open_llm(base, tensor_parallel_size=2, **options) as llm:
        for _ in range(2):
            found, others = answers(llm, asked)
            assert found == ids
            assert others == pytest.approx(scores, abs=1e-4)


def test_experts_and_routers_have_adapters_on_ranks(tmp_path: Path) -> None:
    model = random_model(CONFIGS["mixtral"])
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, ("q_proj", "mlp.gate"))
    experts = model.config.num_local_experts
    for index in range(model.config.num_hidden_layers):
        start, made = f"model.layers.{index}.mlp.experts", torch.Generator().manual_seed(index)
        sizes = model.config.hidden_size, model.config.intermediate_size
        shapes = {"": sizes[::-1], ".base_layer": (sizes[0], 2 * sizes[1])}
        for inside, (columns, rows) in shapes.items():
            a, b = (experts * 2, columns), (rows, experts * 2)
            peft.more[f"{start}{inside}.lora_A.weight"] = torch.randn(a, generator=made) / 4
            peft.more[f"{start}{inside}.lora_B.weight"] = torch.randn(b, generator=made) / 4
    asked = [None, named(peft.save(tmp_path / "adapter"))] * (len(PROMPTS) // 2)
    with open_llm(tmp_path / "base") as llm:
        ids, scores = answers(llm, asked)
        assert ids != answers(llm, [None] * len(PROMPTS))[0]
    with open_llm(tmp_path / "base", tensor_parallel_size=2) as llm:
        found, others = answers(llm, asked)
    assert found == ids
    assert others == pytest.approx(scores, abs=1e-4)
