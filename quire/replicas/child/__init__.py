"""What runs in an engine's own process, whatever it is asked: the only part of this room that
knows sessions and everything below them."""
