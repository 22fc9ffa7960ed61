"""A session for an LLM with replicas, without an engine of its own."""
