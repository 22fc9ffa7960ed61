"""AsyncLLM, under the name scripts know."""

from quire.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
