"""The engine's process: `python -m quire.jobs.child`, started and watched by the supervisor.

Rows come in over stdin, results go out over what was stdout. It ends when the supervisor does:
the end of stdin ends it at once, whatever it is at. The only part of `jobs` that knows LLM and
everything below it.
"""
