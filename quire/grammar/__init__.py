"""What a text must look like: compiled once, then one matcher per sequence says which tokens may
come next.

Over llguidance, which is imported when the first grammar is used. Knows token ids and bytes, not
torch: a mask leaves this room as packed bits.
"""
