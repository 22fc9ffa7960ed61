"""`quire run --join`: the same command on any number of machines, one OUTPUT on a shared disk.

The input is cut into chunks. A worker claims a chunk, answers its rows, and writes a journal in a
directory of its own, so that no two workers write to one file. If a worker dies, another one claims
its chunk, and reads what was finished. When every chunk is done, one worker merges the journals.
"""
