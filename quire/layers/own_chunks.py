"""Attention of tokens to their own chunk alone: each chunk that a sequence computes tokens of
becomes a sequence of its own, whose blocks are those of the chunk. So kernels need not know chunks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from quire.backends.ops import AttentionInputs


def apart_by_chunk(inputs: AttentionInputs, chunk: int, block_size: int) -> AttentionInputs:
    """The same tokens, each with the tokens of its chunk as context. `chunk` is a multiple of
    `block_size`; nothing is shared as a prefix.

    block_size 4, chunk 8, a sequence of 19 tokens that computes the last 13, in blocks a b c d e:
        query_starts  [0, 13]   -> [0, 2, 10, 13]
        context_lens  [19]      -> [8, 8, 3]
        tables        [a b c d e] -> [a b], [c d], [e e], where the last is not read"""
    if chunk % block_size:
        raise ValueError(
            f"chunks of {chunk} tokens in blocks of {block_size}, which must divide them"
        )
    starts, lengths = inputs.query_starts.numpy(), inputs.context_lens.numpy()
    begins = np.maximum(lengths - np.diff(starts), 0)  # idle sequences have no context
    first = begins // chunk
    counts = np.maximum((lengths - 1) // chunk - first + 1, 1)
    of = np.repeat(np.arange(len(lengths)), counts)  # the sequence of each part
    number = first[of] + np.arange(len(of)) - np.repeat(counts.cumsum() - counts, counts)
    parts = starts[of] + np.maximum(number * chunk - begins[of], 0)
    width = inputs.tables.shape[1]
    columns = number[:, None] * (chunk // block_size) + np.arange(min(chunk // block_size, width))
    tables = inputs.tables[torch.from_numpy(of)]
    return replace(
        inputs,
        query_starts=torch.from_numpy(np.append(parts, starts[-1])),
        context_lens=torch.from_numpy(np.minimum(lengths[of] - number * chunk, chunk)),
        tables=tables.gather(1, torch.from_numpy(np.minimum(columns, width - 1))),
        num_prefill=int(counts[: inputs.num_prefill].sum()),
        prefixes=(),
        longest_query=min(inputs.longest_query, chunk),
        longest_context=min(inputs.longest_context, chunk),
    )
