"""Grammars that a text must follow: compiled once; then one matcher per sequence says which tokens
may come next.

Built on llguidance, which is imported when the first grammar is used. Uses token ids and bytes, not
torch: a mask is returned as packed bits.
"""
