"""Scores from stored results: no engine, no torch, only texts and what they should have been."""
