"""Runs plans on one GPU."""
