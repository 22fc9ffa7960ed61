"""From finished sequences to what the caller gets."""
