"""Measurements of quire, some beside other engines. offline.py says what is timed."""
