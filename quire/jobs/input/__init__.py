"""Reading tables row by row: JSON lines, CSV, Parquet, Arrow, data sets of the Hub, stdin.

Every reader yields each row of a file once, in order and in bounded memory, or a BadRow for a row
that cannot be read. Rows that are not wanted are counted and not parsed.
"""
