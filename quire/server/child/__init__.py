"""The engine's process: `python -m quire.server.child`, started and watched by the server.

Rows come in over stdin at any time, what they write goes out over what was stdout, one message a
step. The end of stdin ends it at once. The only part of `server` that knows sessions and torch.

To the engine      open, ask, abort, call
From the engine    ready, failed, delta, refused, called, metrics
"""
