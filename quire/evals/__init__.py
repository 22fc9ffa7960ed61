"""Evaluations: named tasks, and scores of stored results."""
