"""Jobs: answer every row of a table, and lose no result.

A supervisor process keeps the journal; the engine is a child process that it can start again. Only
the package `child` imports torch.
"""
