"""Which block holds these tokens after this past.

A published block is found by its key: (serial of the block before it, its own token bytes).
Serials are given once and never again, so a key names one exact past, and the dictionary
compares the tokens themselves: a colliding hash cannot hand out a wrong block. When a block
is evicted its serial is gone, and what was published behind it can no longer be reached; it
is evicted in turn.

block_size 4, published [7 7 7 7] (serial 1) and behind it [8 8 8 8] (serial 2):
    match(b"7777 8888 9...", root="") -> [b0, b1]
"""

from __future__ import annotations

# The serial of a published block, or, before the first block, what the prompt's cache is
# salted with.
Past = int | str


class PrefixIndex:
    """Published blocks by what they hold; knows nothing of who holds them."""

    def __init__(self) -> None:
        self._block_of: dict[tuple[Past, bytes], int] = {}
        self._key_of: dict[int, tuple[Past, bytes]] = {}
        self._serial_of: dict[int, int] = {}
        self._last_serial = 0
        # What the last match found, with its root and the bytes of all of it: prompts that
        # share a preamble come one after the other, and it is long.
        self._last_match: tuple[str, bytes, list[int]] = ("", b"", [])

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def match(self, tokens: bytes, root: str, *, block_bytes: int, most: int) -> list[int]:
        """The published blocks that begin `tokens`, at most `most` of them."""
        found: list[int] = []
        past: Past = root
        last_root, beginning, blocks = self._last_match
        if blocks and root == last_root and len(blocks) <= most and tokens.startswith(beginning):
            found, past = blocks.copy(), self._serial_of[blocks[-1]]
        for i in range(len(found), most):
            block = self._block_of.get((past, tokens[i * block_bytes : (i + 1) * block_bytes]))
            if block is None:
                break
            found.append(block)
            past = self._serial_of[block]
        self._last_match = root, tokens[: len(found) * block_bytes], found.copy()
        return found

    def publish(self, blocks: list[int], past: Past, tokens: bytes) -> Past:
        """Make blocks findable that follow each other after `past` and hold equal shares of
        `tokens`; returns the serial of the block published for the last one's content.

        If an equal block is already there ours stays private, and what follows ours is
        published behind the other one: the same tokens after the same past.
        """
        size = len(tokens) // max(len(blocks), 1)
        for i, block in enumerate(blocks):
            key = (past, tokens[i * size : (i + 1) * size])
            other = self._block_of.get(key)
            if other is None:
                self._last_serial += 1
                self._block_of[key], self._key_of[block] = block, key
                self._serial_of[block] = past = self._last_serial
            else:
                past = self._serial_of[other]
        return past

    def serial(self, block: int) -> int:
        return self._serial_of[block]

    def forget(self, block: int) -> None:
        self._last_match = ("", b"", [])
        del self._block_of[self._key_of.pop(block)]
        del self._serial_of[block]
