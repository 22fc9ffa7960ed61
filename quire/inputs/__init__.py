"""What a caller may pass as a prompt, under the names of `vllm.inputs`."""

from quire.inputs.forms import (
    DataPrompt,
    EmbedsPrompt,
    ExplicitEncoderDecoderPrompt,
    MultiModalDataDict,
    MultiModalUUIDDict,
    PromptType,
    SingletonPrompt,
    TextPrompt,
    TokensPrompt,
)

__all__ = [
    "DataPrompt",
    "EmbedsPrompt",
    "ExplicitEncoderDecoderPrompt",
    "MultiModalDataDict",
    "MultiModalUUIDDict",
    "PromptType",
    "SingletonPrompt",
    "TextPrompt",
    "TokensPrompt",
]
