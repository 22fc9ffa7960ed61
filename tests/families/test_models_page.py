"""docs/models.md lists the families that there are, and each was held to Transformers."""

from __future__ import annotations

from docs import render_models
from quire.families.registry import FAMILIES
from tests.parity.families import FAMILIES as FIRST
from tests.parity.more_families import LATENTS, MORE


def test_the_page_is_what_the_code_says() -> None:
    page = render_models.PAGE.read_text(encoding="utf-8")
    assert page == render_models.render(), "out of date. Run: python -m docs.render_models"


def test_every_family_of_text_is_held_to_transformers() -> None:
    """Those of models that see or hear have tests of their own, with images and sounds."""
    tiny = (*FIRST.values(), *MORE.values(), *LATENTS.values())
    held = {config.model_type for config in tiny}
    text = [family for family in FAMILIES if "vl" not in family.name and family.name != "whisper"]
    assert {family.name for family in text if not held & set(family.model_types)} == set()
