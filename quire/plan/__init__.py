"""What is decided before running: order, duplicates, shared prefixes, and what it will take."""
