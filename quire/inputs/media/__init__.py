"""Media of prompts: read, checked, identified by content, and prepared before they are needed."""
