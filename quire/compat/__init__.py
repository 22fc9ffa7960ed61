"""Module names that scripts know, each another name for a module in this folder.

`quire.lora.request` is `quire.compat.lora.request`, the same object. The names stand here and not
among the modules of quire, so that a reader of quire does not take them for parts of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

NAMES = frozenset(
    {
        "distributed",
        "exceptions",
        "logits_process",
        "lora",
        "pooling_params",
        "renderers",
        "tokenizers",
        "v1",
    }
)


class ScriptNames:
    """Finds `quire.NAME` in `quire.compat.NAME`, for the names above and what is in them.

    A finder and a loader by its methods alone: the classes of importlib.abc bring half of the
    standard library with them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "quire" or name.partition(".")[0] not in NAMES:
            return None
        return ModuleSpec(fullname, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        home = f"quire.compat.{spec.name.removeprefix('quire.')}"
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:
                raise
            raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name) from None
        # The import system puts the new name's spec into the module; it goes back below.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        module.__spec__ = spec.loader_state if spec is not None else None


def serve_script_names() -> None:
    """Once: `import quire` again, after a test took it out of sys.modules, adds no second one."""
    if not any(type(finder).__name__ == "ScriptNames" for finder in sys.meta_path):
        sys.meta_path.insert(0, ScriptNames())
