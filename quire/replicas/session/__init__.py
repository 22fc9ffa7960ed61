"""What an LLM with replicas holds instead of an engine of its own."""
