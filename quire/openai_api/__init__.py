"""Translates the bodies of OpenAI's API, for `quire serve` and `quire batch`.

A request body becomes rows for the engine; the engine's outputs become a response body or chunks of
a stream. It works on plain data and imports neither torch nor anything of HTTP.
"""
