"""AsyncLLM, under the name scripts know."""

from quire.session.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
