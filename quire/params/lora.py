"""LoRARequest: which adapter an answer should use. It can be made; `generate` refuses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequest
from quire.params.rules import whole

LORA_WAY_OUT = "LoRA adapters are not built: merge the adapter into the weights and load those."


@dataclass(slots=True, eq=False)
class LoRARequest:
    """An adapter by name and number; two requests are equal when their names are."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        self.lora_int_id = whole(InvalidRequest, "lora_int_id", self.lora_int_id, low=1)

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
