"""Ops on a CPU, with torch."""
