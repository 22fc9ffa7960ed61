"""Everything that lives as long as an LLM: its loaded model, its engine, and who may call it."""
