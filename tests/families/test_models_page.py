"""docs/models.md lists the families that there are, and each was held to Transformers."""

from __future__ import annotations

from docs import render_models
from quire.families.registry import FAMILIES
from tests.parity.families import FAMILIES as FIRST
from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import LATENTS, MORE
from tests.parity.newest_families import NEWEST
from tests.ranks.test_shares import SEEING


def test_the_page_is_what_the_code_says() -> None:
    page = render_models.PAGE.read_text(encoding="utf-8")
    assert page == render_models.render(), "out of date. Run: python -m docs.render_models"


TEXT = [family for family in FAMILIES if family.name not in SEEING]


def test_the_readme_counts_them() -> None:
    said = " ".join((render_models.PAGE.parents[1] / "README.md").read_text("utf-8").split())
    in_gguf = sum(family.gguf is not None for family in TEXT)
    assert (
        f"{len(TEXT)} families of text models in quire's own code ({in_gguf} of them from GGUF)"
        in said
    )


def test_every_family_of_text_is_held_to_transformers() -> None:
    """Those of models that see or hear have tests of their own, with images and sounds."""
    tiny = (
        *FIRST.values(),
        *MORE.values(),
        *LATENTS.values(),
        *BY_KIND.values(),
        *WITH_STATES.values(),
        *LATER.values(),
        *NEWEST.values(),
    )
    held = {config.model_type for config in tiny}
    assert {family.name for family in TEXT if not held & set(family.model_types)} == set()
