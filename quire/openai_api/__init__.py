"""OpenAI's bodies and what they mean here: the one translator, of `quire serve` and `quire batch`.

A body becomes rows for the engine; what the engine gives becomes a body or the chunks of a stream.
Plain data on both sides: knows neither torch nor HTTP.
"""
