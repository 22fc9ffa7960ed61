"""Makes `vllm` another name of quire in this process, for libraries that import vllm themselves:

    import quire.compat.as_vllm                                  # before the library
    python -m quire.compat.as_vllm lm_eval --model vllm ...      # a module that is run, or a file

`vllm.__version__` and importlib.metadata then give the release whose API quire has.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import quire
from quire.compat import is_vllm
from quire.compat.vllm_metadata import VLLM_VERSION
from quire.errors import InvalidOption


class QuireAsVllm(ModuleType):
    """quire, with the version number that libraries compare with."""

    def __init__(self) -> None:
        super().__init__("vllm", quire.__doc__)
        self.__version__ = VLLM_VERSION
        self.__version_tuple__ = tuple(int(number) for number in VLLM_VERSION.split("."))
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec("vllm", None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(quire, name)

    def __dir__(self) -> list[str]:
        return dir(quire)


def stand_in() -> None:
    """Install quire as `vllm`; an error if the real vllm was imported before."""
    if is_vllm() and isinstance(sys.modules["vllm"], QuireAsVllm):
        return
    if "vllm" in sys.modules and not is_vllm():
        raise InvalidOption(
            "vllm was imported already: import quire.compat.as_vllm before everything that "
            "imports it.",
            parameter="vllm",
        )
    sys.modules["vllm"] = QuireAsVllm()


def _run(words: list[str]) -> None:
    """Run a module or a file, with its own arguments."""
    if not words:
        raise SystemExit("usage: python -m quire.compat.as_vllm MODULE_OR_FILE [ARGUMENTS]")
    sys.argv = words
    if words[0].endswith(".py"):
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import quire.compat.as_vllm  # noqa: F401  (the class that others see is that module's)

    _run(sys.argv[1:])
else:
    stand_in()
