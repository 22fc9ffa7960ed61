"""Jobs: a table in, every result out, nothing lost.

A supervisor keeps the journal; the engine is its restartable child. Nothing here but `child`
reaches torch.
"""
