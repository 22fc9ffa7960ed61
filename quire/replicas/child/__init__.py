"""The code that runs in an engine's own process: the only part of this room that imports sessions
and everything below them."""
