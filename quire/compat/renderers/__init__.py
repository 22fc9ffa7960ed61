"""How chat messages become text, under the module name scripts import; see inputs/chat.py."""
