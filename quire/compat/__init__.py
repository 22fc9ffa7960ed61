"""Module names that scripts know, each a list of names that are elsewhere.

They stand in a table and not among the modules of quire, so that a reader of quire does not take
them for parts of it.
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

_PROCESSORS = "BatchUpdate LogitsProcessor MoveDirectionality"
# By module: where its names come from; OTHER=NAME is a name under which scripts know it.
MODULES = {
    "distributed.parallel_state": {
        "compat.parallel_state": "cleanup_dist_env_and_memory destroy_distributed_environment "
        "destroy_model_parallel"
    },
    "exceptions": {
        "errors": "VLLMError=QuireError VLLMNotFoundError=ModelNotFound "
        "VLLMValidationError=InvalidRequest"
    },
    "logits_process": {"compat.logits_process": "LogitsProcessor"},
    "lora.request": {"params.lora": "LoRARequest"},
    "pooling_params": {"params.pooling": "PoolingParams"},
    "renderers.hf": {"compat.chat_template": "resolve_chat_template"},
    "tokenizers": {"compat.tokenizers": "get_tokenizer"},
    "v1.engine.async_llm": {"session.async_llm": "AsyncLLM"},
    "v1.metrics.reader": {"session.metrics": "Counter Gauge Histogram Metric Vector"},
    "v1.sample.logits_processor": {
        "sampling.batch_interface": f"{_PROCESSORS} AdapterLogitsProcessor RequestLogitsProcessor "
        "process_dict_updates"
    },
    "v1.sample.logits_processor.builtin": {"sampling.batch_interface": "process_dict_updates"},
    "v1.sample.logits_processor.interface": {
        "sampling.batch_interface": f"{_PROCESSORS} AddedRequest MovedRequest RemovedRequest"
    },
}


class ScriptNames:
    """Finds and makes `quire.NAME` for the modules above and the packages that they are in.

    A finder and a loader by its methods alone: the classes of importlib.abc bring half of the
    standard library with them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "quire":
            return None
        is_package = any(module.startswith(f"{name}.") for module in MODULES)
        if name not in MODULES and not is_package:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> None:
        """One of the usual kind."""

    def exec_module(self, module: ModuleType) -> None:
        homes = MODULES.get(module.__name__.removeprefix("quire."), {})
        for home, names in homes.items():
            for name in names.split():
                known, _, own = name.rpartition("=")
                found = getattr(import_module(f"quire.{home}"), own)
                setattr(module, known or own, found)


def serve_script_names() -> None:
    """Once: `import quire` again, after a test took it out of sys.modules, adds no second one."""
    if not any(type(finder).__name__ == "ScriptNames" for finder in sys.meta_path):
        sys.meta_path.insert(0, ScriptNames())
