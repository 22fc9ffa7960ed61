"""Plans run on one GPU."""
