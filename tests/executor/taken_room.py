"""Compiles the kernels of a model for a Hopper GPU, without one, and prints their shared memory.

    python -m tests.executor.taken_room ROOM HIDDEN INNER HEADS KV_HEADS HEAD_DIM VOCAB

A process of its own, because here kernels must not be interpreted.
"""

from __future__ import annotations

import json
import sys

from quire.executor.driver import Gpu
from quire.executor.precompile.signatures import Steps
from quire.executor.precompile.worker import Device, _compile_for
from quire.options import Options, resolve
from tests.executor.asked_variants import LLAMA
from tests.specs import changed

KINDS = {
    "bfloat16": Options(dtype="bfloat16"),
    "float32": Options(dtype="float32"),
    "KV in fp8": Options(kv_cache_dtype="fp8"),
}


def main(room: int, sizes: list[int]) -> None:
    gpu = Gpu((9, 0), 150 << 30, room)
    hidden, inner, heads, kv_heads, head_dim, vocab = sizes
    spec = changed(
        LLAMA,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
    )
    _compile_for(Device(gpu))
    taken = {}
    for kind, options in KINDS.items():
        steps = Steps(resolve(options, spec, gpu.facts()), spec, room, (0, 0))
        for number, variant in enumerate([*steps.first(), *steps.later(), *steps.features()]):
            name = f"{kind}: {variant.kernel.__name__} {number}"
            taken[name] = variant.compile().metadata.shared
    print(json.dumps(taken))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
