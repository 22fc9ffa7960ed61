"""`quire serve`: an OpenAI-compatible server over one engine, whose speciality is batches.

This process speaks HTTP and never loads torch; the engine is a child of it (child/), which may die
and come back. `bridge.py` is the way between the two.
"""
