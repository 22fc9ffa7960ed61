"""Several engines behind one stream of rows: which engine gets which row, what crosses to its
process and back, and what is left of it when it dies.

Torch-free, but for `child`: what an engine's process runs.
"""
