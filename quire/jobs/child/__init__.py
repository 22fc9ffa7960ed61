"""The engine's process: `python -m quire.jobs.child`, started and watched by the supervisor.

Rows come in over stdin, and results go out over the original stdout. The process ends at once when
its stdin is closed, so it never outlives the supervisor. This is the only part of `jobs` that
imports LLM and the rooms below it.
"""
