"""What a model whose layers keep states asks of options, and what is not built for it."""

from __future__ import annotations

from quire.errors import NotSupported
from quire.options.parse import Options
from quire.spec import ModelSpec

LEAST, TILE = 16, 128  # tokens of a block, and of what attention takes at once


def check_states(options: Options) -> None:
    """NotSupported, by name, for what such layers cannot do yet."""
    if options.kv_cache_dtype == "fp8":
        raise NotSupported(
            "kv_cache_dtype='fp8': layers that keep a state have it in the blocks of the KV cache, "
            "and not in 8 bits. Leave it out."
        )
    if options.batch_invariant:
        raise NotSupported(
            "batch_invariant=True: layers that keep a state take up a prompt in chunks and an "
            "answer token by token, and the two add up in another order. Leave it out."
        )
    if options.enable_lora:
        raise NotSupported(
            "enable_lora=True is not built for layers that keep a state. Merge the adapter into "
            "the model's weights."
        )
    if options.tensor_parallel_size > 1:
        raise NotSupported(
            f"tensor_parallel_size={options.tensor_parallel_size}: layers that keep a state are "
            "not divided among ranks yet. Run replicas of the whole model: data_parallel_size."
        )


def least_block_size(spec: ModelSpec, kv_bytes: int) -> int:
    """The fewest tokens whose keys and values in one layer take as many bytes as the state of one;
    `kv_bytes` are those of one number of theirs. A power of two, or whole tiles."""
    states = [state.state_numbers for state in spec.states if state is not None]
    half = 4 * -(-max(states, default=0) // 2)  # with the keys; the other with the values
    size = LEAST
    while size * spec.num_kv_heads * spec.head_dim * kv_bytes < half:
        size += min(size, TILE)
    return size
