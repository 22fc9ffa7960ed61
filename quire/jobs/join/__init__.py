"""`quire run --join`: the same command on any number of machines, one OUTPUT on a shared disk.

The input is cut into chunks. A worker claims a chunk, answers it, and journals into a directory of
its own, so that no two write to one file. A chunk of a worker that died is claimed again; what it
had finished is read. When every chunk is done, one of the workers merges.
"""
