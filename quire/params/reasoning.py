"""Tags that open and close a model's thoughts, and how a script can set them."""

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
    """For reasoning_config: the text that opens thoughts, and the text that is written where
    thinking_token_budget ends them, closing tag included. "" means the model's own tags."""

    reasoning_parser: str = ""
    reasoning_start_str: str = ""
    reasoning_end_str: str = ""

    def closing(self, opening: str) -> str:
        """The text that closes thoughts opened by `opening`."""
        return dict(TAGS).get(opening, self.reasoning_end_str)
