"""Anthropic's Messages, as one more way to write a chat: bodies become what openai_api asks of the
engine, and what the engine gives becomes messages made of blocks.

Plain data on both sides: knows neither torch nor HTTP.
"""
