"""Media of prompts: they are read, checked, identified by content, and prepared in advance."""
