"""The engine's process: `python -m quire.server.child`, started and watched by the server.

Rows come in over stdin at any time. Their outputs go out over the original stdout, one message a
step. The process ends at once when stdin is closed. Only this part of `server` uses sessions and
imports torch.

To the engine      open, ask, abort, call
From the engine    ready, failed, delta, refused, called, metrics
"""
