"""LoRARequest: which adapter an answer should use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequest, NotSupported
from quire.params.rules import fail, whole
from quire.params.unknown import explains_unknown_keywords


@dataclass(slots=True, eq=False)
class LoRARequest:
    """An adapter by name, number and path; two requests are equal when their names are.

    `lora_path` is a directory that PEFT wrote, or a Hub id. An adapter is identified by its name
    and the content found there: one that changed on disk is another adapter.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        name = self.lora_name
        if not isinstance(name, str) or not name or "\0" in name or len(name) > 1000:
            rule = "a text of 1 to 1000 characters, none of them NUL"
            fail(InvalidRequest, "lora_name", rule, name)
        self.lora_int_id = whole(InvalidRequest, "lora_int_id", self.lora_int_id, low=1)
        if not isinstance(self.lora_path, str | os.PathLike) or "\0" in os.fspath(self.lora_path):
            fail(InvalidRequest, "lora_path", "a path without NUL characters", self.lora_path)
        self.lora_path = os.fspath(self.lora_path)
        for field in ("tensorizer_config_dict", "is_3d_lora_weight"):
            if getattr(self, field):
                raise NotSupported(
                    f"LoRARequest.{field} is not built: give the directory that PEFT wrote."
                )

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


explains_unknown_keywords(LoRARequest)
