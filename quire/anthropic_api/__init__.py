"""Anthropic's Messages API, translated to chats: bodies become the requests of openai_api, and the
engine's outputs become messages made of blocks.

It works on plain data and imports neither torch nor anything of HTTP.
"""
