"""Which products of a model an adapter can change, by quire's names and by the files'. No torch.

A site is one product of quire's, `layers.0.attn.qkv`; its parts are what files have as modules of
their own, `q_proj`, `k_proj` and `v_proj`, in row order; several may be rows of one module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from quire.families.registry import family_named
from quire.models.fallback.loaded import Product
from quire.spec import ModelSpec
from quire.weights.names import weights_of
from quire.weights.parts import Part
from quire.weights.row_order import RowOrder
from quire.weights.stored_names import own_name
from quire.weights.within import Within

EMBEDDING, HEAD = "embed", "head"
_WEIGHT = ".weight"
# Parts of a mixture of experts that are not products of every token.
_EXPERTS = (".experts.", ".router", ".shared_gate")


@dataclass(frozen=True, slots=True)
class SitePart:
    """A module of the model's files inside a site."""

    module: str  # model.layers.0.self_attn.k_proj
    site: str  # layers.0.attn.qkv
    index: int  # among the parts of the site
    first: int  # row of the site's product
    rows: int
    columns: int
    order: RowOrder | None  # in which quire wants the rows of the files
    within: Within  # which rows of the module, where that is not all of them
    turned: bool  # the files have its weight as [in, out]


@dataclass(frozen=True, slots=True)
class Site:
    """One product, `columns` wide, that consists of so many rows part by part."""

    rows: tuple[int, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class Sites:
    """All of them: parts by module, sites by name, and modules that exist and are not built."""

    parts: Mapping[str, tuple[SitePart, ...]]
    sites: Mapping[str, Site]
    not_built: frozenset[str]


def sites_of(spec: ModelSpec) -> Sites:
    """Every product of a model that adapters may change."""
    parts: dict[str, tuple[SitePart, ...]] = {}
    sites: dict[str, Site] = {}
    not_built: set[str] = set()
    for weight in weights_of(spec):
        if len(weight.shape) != 2 or not weight.name.endswith(_WEIGHT):
            continue
        name, columns = weight.name.removesuffix(_WEIGHT), weight.shape[1]
        if any(word in name for word in _EXPERTS) or name == "positions" or weight.is_plain:
            not_built |= {part.hf.removesuffix(_WEIGHT) for part in weight.parts}
            continue
        sites[name] = Site(tuple(part.rows for part in weight.parts), columns)
        _add_parts(parts, name, columns, weight.parts)
    if spec.tied_embeddings:  # one weight, and yet two modules
        head = family_named(spec.family).outer_names.head
        sites[HEAD] = Site((spec.vocab_size,), spec.hidden_size)
        _add_parts(parts, HEAD, spec.hidden_size, (Part(*head.stored("weight"), spec.vocab_size),))
    return Sites(parts, sites, frozenset(not_built))


def sites_of_products(products: Iterable[Product]) -> Sites:
    """The same for a model that Transformers computes: every linear part is a product of its own,
    and nothing else is changed."""
    sites, parts = {}, {}
    for one in products:
        module = own_name(one.name)
        sites[one.name] = Site((one.rows,), one.columns)
        sizes = (0, 0, one.rows, one.columns)
        parts[module] = (SitePart(module, one.name, *sizes, None, Within(), turned=False),)
    return Sites(parts, sites, frozenset())


def _add_parts(
    parts: dict[str, tuple[SitePart, ...]], site: str, columns: int, stored: tuple[Part, ...]
) -> None:
    first = 0
    for index, part in enumerate(stored):
        module = part.hf.removesuffix(_WEIGHT)
        # However the files lay the weight out, an adapter's A is [rank, in] and its B [out, rank].
        within = replace(part.hf_within, turned=False)
        place = (index, first, part.rows, columns)
        made = SitePart(module, site, *place, part.order, within, part.hf_within.turned)
        parts[module] = (*parts.get(module, ()), made)
        first += part.rows
