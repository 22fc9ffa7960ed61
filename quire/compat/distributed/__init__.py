"""What scripts tidy up after an LLM with, under the name they know."""
