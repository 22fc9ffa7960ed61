"""The products of a model that an adapter can change, by quire's names and by the files'. No torch.

A site is one product of quire, `layers.0.attn.qkv`. Its parts are separate modules in files,
`q_proj`, `k_proj` and `v_proj`, in row order; several may be rows of one module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from quire.families.registry import family_named
from quire.layer_plan import ExpertsPlan
from quire.models.fallback.loaded import Product
from quire.spec import ModelSpec
from quire.weights.names import weights_of
from quire.weights.parts import Part, Weight, single
from quire.weights.row_order import RowOrder
from quire.weights.stored_names import own_name
from quire.weights.within import Within

EMBEDDING, HEAD = "embed", "head"
_WEIGHT = ".weight"
# Parts of a mixture of experts that do not compute every token.
_EXPERTS = (".experts.", ".router", ".shared_gate")
_OF_EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate_up|up|down)")
_OLDER = ".block_sparse_moe."
_STACKS = {"gate_up": "gate_up_proj", "down": "down_proj"}
# A table and products that adapters cannot change yet.
_UNCHANGED = re.compile(r"layer_embed|layers\.\d+\.beside\.experts\..*")
# Norms around branches, and of queries and keys.
_NORM = re.compile(r"(layers\.\d+\.((attn|mlp|cross)(_post)?_|attn\.[qk]_|attn\.q_a_))?norm")
# Keys and values of latents, which are never computed: their products are used in two ways.
_PAIRS = re.compile(r"layers\.\d+\.attn\.kv_b")
_OF_HEADS = re.compile(r"layers\.(\d+)\.attn\.[qk]_norm")


@dataclass(frozen=True, slots=True)
class SitePart:
    """A module of the model's files, as a part of a site."""

    module: str  # model.layers.0.self_attn.k_proj
    site: str  # layers.0.attn.qkv
    index: int  # among the modules of the site; parts of one module, which share A, have one index
    first: int  # row of the site's product
    rows: int
    columns: int
    order: RowOrder | None  # the order in which quire wants the files' rows
    within: Within  # which rows of the module, if not all
    transposed: bool  # the files store its weight as [in, out]
    less: float = 0.0  # added to the numbers of the files
    expert: int | None = None  # its expert, in a tensor for all experts


@dataclass(frozen=True, slots=True)
class Site:
    """One product with `columns` inputs, and the rows of its modules."""

    rows: tuple[int, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class Sites:
    """All sites of a model: parts by module, sites by name, and modules that exist but are not
    supported. `stacks`: tensors for all experts, by module and tensor. `norms`: modules of norms.
    `biases`: names of biases. `experts_add_only`: experts support A and B only. `is_tied`: head and
    embedding are one matrix. `base`: how names of layers begin in the model's files."""

    parts: Mapping[str, tuple[SitePart, ...]]
    sites: Mapping[str, Site]
    not_built: frozenset[str]
    stacks: Mapping[str, Mapping[str, tuple[SitePart, ...]]] = field(default_factory=dict)
    norms: Mapping[str, SitePart] = field(default_factory=dict)
    biases: frozenset[str] = frozenset()
    experts_add_only: bool = False
    is_tied: bool = False
    base: str = "model"

    def rows_of(self, site: str) -> int:
        """The rows of a product or a norm."""
        if site in self.sites:
            return sum(self.sites[site].rows)
        return next(one.rows for one in self.norms.values() if one.site == site)


def is_of_expert(site: str) -> bool:
    return _OF_EXPERT.fullmatch(site) is not None


def is_of_pairs(site: str) -> bool:
    """Whether an adapter may change this product by A and B alone."""
    return _PAIRS.fullmatch(site) is not None


def is_seldom(site: str) -> bool:
    """Whether only few adapters change this site."""
    return site == HEAD or is_of_pairs(site) or any(word in site for word in _EXPERTS)


def sites_of(spec: ModelSpec, *, experts_add_only: bool = False, divided: bool = False) -> Sites:
    """All parts of a model that adapters may change; `divided`: ranks share it."""
    parts: dict[str, tuple[SitePart, ...]] = {}
    stacks: dict[str, dict[str, tuple[SitePart, ...]]] = {}
    sites: dict[str, Site] = {}
    norms: dict[str, SitePart] = {}
    not_built: set[str] = set()
    biases: set[str] = set()
    for weight in weights_of(spec):
        name = weight.name.removesuffix(_WEIGHT)
        if name == weight.name:
            biases |= {part.hf for part in weight.parts}
            continue
        if _NORM.fullmatch(name) and _may_differ(spec, name, divided=divided):
            made = _norm(name, weight)
            norms[made.module] = made
            continue
        if not is_of_pairs(name) and (weight.is_plain or _is_unchanged(spec, weight)):
            names_there = (one for part in weight.parts for one in _names(part))
            not_built |= {module for one in names_there for module in _modules(one)}
            continue
        columns = weight.shape[1]
        rows = _add_parts(parts, name, columns, weight.parts)
        sites[name] = Site(rows, columns)
        _add_stacks(stacks, name, columns, weight.parts)
    names = family_named(spec.family).outer_names
    if spec.tied_embeddings:  # one weight, but two modules
        head = single(HEAD, (spec.vocab_size, spec.hidden_size), names.head).parts
        sites[HEAD] = Site(_add_parts(parts, HEAD, spec.hidden_size, head), spec.hidden_size)
    return Sites(
        parts,
        sites,
        frozenset(not_built),
        stacks,
        norms,
        frozenset(biases),
        experts_add_only=experts_add_only,
        is_tied=spec.tied_embeddings,
        base=names.layer.hf.partition(".")[0],
    )


def _is_unchanged(spec: ModelSpec, weight: Weight) -> bool:
    """Whether this is no matrix, or one that adapters cannot change."""
    name = weight.name.removesuffix(_WEIGHT)
    if len(weight.shape) != 2 or name == "positions" or _UNCHANGED.fullmatch(name):
        return True
    found = _OF_EXPERT.fullmatch(name)
    plan = None if found is None else spec.layers[int(found[1])].mlp
    return isinstance(plan, ExpertsPlan) and not plan.expert.gated


def sites_of_products(products: Iterable[Product]) -> Sites:
    """The sites of a model that Transformers computes: every linear part is a product of its own,
    and nothing else can be changed."""
    sites, parts, biases = {}, {}, set()
    for one in products:
        module = own_name(one.name)
        sites[one.name] = Site((one.rows,), one.columns)
        sizes = (0, 0, one.rows, one.columns)
        parts[module] = (SitePart(module, one.name, *sizes, None, Within(), transposed=False),)
        if one.has_bias:
            biases.add(f"{module}.bias")
    return Sites(parts, sites, frozenset(), biases=frozenset(biases))


def _may_differ(spec: ModelSpec, norm: str, *, divided: bool) -> bool:
    """Whether lines of a pass may have other weights in a norm. Not if it is behind the rotation of
    heads, nor if it is over all heads at once, of which each rank has some."""
    found = _OF_HEADS.fullmatch(norm)
    if found is None:
        return True
    plan = spec.layers[int(found[1])].attention
    return not plan.qk_norm_behind and not (divided and plan.qk_norm_over == "width")


def _names(part: Part) -> tuple[str, ...]:
    return (part.hf,) if part.hf_else is None else (part.hf, part.hf_else[0])


def _module(stored: str) -> str:
    return stored.removesuffix(_WEIGHT)


def _modules(stored: str) -> tuple[str, ...]:
    """The module of a tensor; if it is of an expert, also what PEFT calls a tensor of all."""
    all_experts, inside, _ = stored.rpartition(".experts.")
    folder = f"{all_experts}.experts"
    return (_module(stored), *((folder, f"{folder}.base_layer") if inside else ()))


def _layer(stored: str) -> str:
    """model.layers.3.block_sparse_moe.experts.0.w1.weight -> model.layers.3"""
    names = stored.split(".")
    return ".".join(names[: 1 + next(i for i, name in enumerate(names) if name.isdigit())])


def _norm(name: str, weight: Weight) -> SitePart:
    (part,) = weight.parts
    sizes = (0, 0, part.rows, 1)
    return SitePart(
        _module(part.hf), name, *sizes, part.order, Within(), transposed=False, less=part.hf_added
    )


def _add_parts(
    parts: dict[str, tuple[SitePart, ...]], site: str, columns: int, stored: tuple[Part, ...]
) -> tuple[int, ...]:
    """Add the parts of a site. Returns the rows of each of its modules: neighbours that are stored
    in one tensor are one, unless they are an expert's gate and up."""
    first, counts = 0, list[int]()
    for number, part in enumerate(stored):
        alone = not number or is_of_expert(site) or part.hf != stored[number - 1].hf
        if alone:
            counts.append(0)
        counts[-1] += part.rows
        place, first = (len(counts) - 1, first, part.rows, columns), first + part.rows
        if part.hf_within.expert is not None:
            continue
        made = _site_part(part, site, place, part.hf_within)
        # Transformers and older files have different names for these.
        names = {made.module, made.module.replace(_OLDER, ".mlp.")}
        other = None if site == EMBEDDING else part.hf_else  # that may be stored as a tied head
        if other is not None and other[1].expert is None:
            names.add(_module(other[0]))
        for module in names:
            parts[module] = (*parts.get(module, ()), made)
    return tuple(counts)


def _add_stacks(
    stacks: dict[str, dict[str, tuple[SitePart, ...]]],
    site: str,
    columns: int,
    stored: tuple[Part, ...],
) -> None:
    """Add an expert's product also as a part of Transformers' tensors for all experts,
    [experts, out, in], in the module of all experts of a layer, usually `mlp.experts`."""
    found = _OF_EXPERT.fullmatch(site)
    if found is None:
        return
    first, total = 0, sum(part.rows for part in stored)
    for index, part in enumerate(stored):
        module, tensor = f"{_layer(part.hf)}.mlp.experts", _STACKS[found[3]]
        if part.hf_else is not None:  # where Transformers has it
            module = part.hf_else[0].rpartition(".")[0]
        within = part.hf_within
        if within.expert is None:
            within = Within(expert=int(found[2]), first=first, of=total)
        made = _site_part(part, site, (index, first, part.rows, columns), within)
        names = {module}
        if _OLDER in part.hf:  # Transformers keeps this folder in some classes
            names.add(f"{_layer(part.hf)}{_OLDER}experts")
        if part.hf_within.expert is not None and ".experts." in part.hf:
            names.add(part.hf.rpartition(".")[0])
        for one in names:
            of_module = stacks.setdefault(one, {})
            of_module[tensor] = (*of_module.get(tensor, ()), made)
        first += part.rows


def _site_part(part: Part, site: str, place: tuple[int, int, int, int], within: Within) -> SitePart:
    # For any layout of the weight, an adapter's A is [rank, in] and its B [out, rank].
    inside = replace(within, transposed=False, expert=None, piled=0)
    order = (part.order, inside, within.transposed)
    return SitePart(_module(part.hf), site, *place, *order, expert=within.expert)
