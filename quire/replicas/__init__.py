"""Several engines behind one stream of rows: which engine gets which row, the messages to and from
its process, and what happens to its rows when it dies.

Torch-free, except `child`: the code of an engine's process.
"""
