"""Ops on a CPU in C: compiled at first use, loaded without torch's headers, and always optional."""
