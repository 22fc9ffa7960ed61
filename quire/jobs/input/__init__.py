"""Reading tables row by row: JSON lines, CSV, Parquet, Arrow, data sets of the Hub, stdin.

Every reader gives each row of a file once, in order, in bounded memory, and a BadRow for one that
cannot be read; a row that is not wanted is counted and not parsed.
"""
