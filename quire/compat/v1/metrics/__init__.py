"""What an LLM counts, under the name scripts know."""
