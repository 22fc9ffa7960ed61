"""VaultGemma: Gemma 2 without norms behind the branches. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import gemma2
from quire.families.family import Family

FAMILY = Family(
    name="vaultgemma",
    architectures=("VaultGemmaForCausalLM",),
    read=partial(gemma2.read, norms="before"),
    unsaid=gemma2.FAMILY.unsaid,
    names=gemma2.NAMES,
    only=gemma2.ACTIVATION,
)
