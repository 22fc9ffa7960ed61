"""Media of prompts: read, checked, named by their content and prepared ahead of the engine."""
