"""Tags that open and close a model's thoughts, and what a script may say of them."""

from __future__ import annotations

from dataclasses import dataclass

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True, slots=True)
class ReasoningConfig:
    """For reasoning_config: what opens thoughts, and what is written where thinking_token_budget
    ends them, up to and with what closes them. "": as the model's own tags are."""

    reasoning_parser: str = ""
    reasoning_start_str: str = ""
    reasoning_end_str: str = ""

    def closing(self, opening: str) -> str:
        """What ends thoughts that begin so."""
        return dict(TAGS).get(opening, self.reasoning_end_str)
