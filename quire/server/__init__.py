"""`quire serve`: an OpenAI-compatible server over one engine, made for batches.

This process answers HTTP and never imports torch. The engine runs in a child process (child/),
which is started again if it dies; `bridge.py` connects the two.
"""
