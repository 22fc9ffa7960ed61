"""Whether 8-bit arithmetic is the default for a model: fast here, and accurate enough.

How accurate is known for the default model, and found out once for any other by reading some
text both ways; the verdict is kept in QUIRE_HOME under a fingerprint of the weights.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict
from typing import Any

import torch

from quire.executor.accuracy import Accuracy, compare
from quire.executor.int8_probe import int8_arithmetic, int8_probe
from quire.executor.probe import LEAST_GAIN, available_memory
from quire.home import keep, kept
from quire.kernels.ops import kernels_for
from quire.models.decoder import Decoder, Weights, head_shape
from quire.models.registry import build_model
from quire.notes import note
from quire.options import Options
from quire.options.decide import DEFAULT_BLOCK_SIZE
from quire.spec import ModelSpec
from quire.tp import TensorParallel
from quire.weights.load import load_int8_weights, load_weights
from quire.weights.source import ModelFiles

# Changes when the arithmetic does: what was found for another one does not count.
ARITHMETIC = "hadamard-64, keys and values in bfloat16 where attention is in tiles"
# Measured with tests/session/test_int8_default.py, which holds it to that.
KNOWN = {
    # SmolLM2-135M-Instruct in Q4_1 and Q8_0, what the alias "smollm2" fetches.
    "b91954397ffbf437beb4386c86abb3e0": Accuracy(4000, 0.0068, 0.0050, 0.961, 0.9996),
}
KEPT = "accuracy.json"
WINDOW, NUM_WINDOWS = 256, 4
# A check that would take longer is not made: so many multiply-adds take about half a minute on
# two cores.
MOST_WORK = 1.5e12
TOPICS = ("exceptions", "import", "naming", "objects", "numbers", "execmodel", "with")


def int8_fits(files: ModelFiles, spec: ModelSpec, options: Options, *, steady: bool) -> str:
    """Why 8-bit arithmetic is right for this model here; empty where it is not.

    It is for weights that were rounded before they came here, where C computes it (`steady`),
    where it is clearly faster than floats, and where it passes its gate."""
    asked = options.quantization is not None or options.dtype is not None
    if asked or not steady or files.kind != "gguf" or options.load_format == "dummy":
        return ""
    if int8_probe().gain < LEAST_GAIN:
        return ""
    found = accuracy_of(files, spec)
    if found is None:
        return ""
    if not found.passes:
        note(f"8-bit arithmetic is not accurate enough for this model: {found.text}")
        return ""
    return f"faster than floats here; {found.text}"


def accuracy_of(files: ModelFiles, spec: ModelSpec) -> Accuracy | None:
    """What is known about a model, or can be found out in reasonable time; else None."""
    key = fingerprint(files)
    if key in KNOWN:
        return KNOWN[key]
    if (known := _accuracy(kept(KEPT).get(key))) is not None:
        return known
    work = NUM_WINDOWS * WINDOW * (spec.body_weights + spec.head_weights)
    bytes_needed = 5 * (spec.body_weights + 2 * spec.head_weights)
    if work > MOST_WORK or bytes_needed > available_memory() / 2:
        return None
    windows = text_windows(files, NUM_WINDOWS, WINDOW)
    if not windows:
        return None
    started = time.perf_counter()
    found = measure(files, spec, windows)
    note(f"checked 8-bit arithmetic on this model, once ({time.perf_counter() - started:.1f} s)")
    keep(KEPT, key, asdict(found))
    return found


def fingerprint(files: ModelFiles) -> str:
    """Of the arithmetic and of the weights: their names, shapes and formats, and the first bytes
    of each."""
    made = hashlib.sha256(ARITHMETIC.encode())
    for tensor in sorted(files.stored_tensors().values(), key=lambda t: t.name):
        made.update(f"{tensor.name} {tensor.shape} {tensor.format.name}\n".encode())
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            made.update(file.read(min(tensor.num_bytes, 256)))
    return made.hexdigest()[:32]


def text_windows(files: ModelFiles, count: int, size: int) -> list[list[int]]:
    """Prose that every Python brings along, as token ids; empty where it was left out."""
    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer

    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    tokenizer = load_gguf_tokenizer(files.gguf.metadata)
    text = "\n\n".join(topics[name] for name in TOPICS if name in topics)
    ids = [int(token) for token in tokenizer.encode(text)]
    count = min(count, len(ids) // size)
    apart = len(ids) // max(1, count)
    return [ids[i * apart : i * apart + size] for i in range(count)]


def measure(files: ModelFiles, spec: ModelSpec, windows: list[list[int]]) -> Accuracy:
    """Read the windows in float32 and in bytes."""
    longest = max(len(window) for window in windows)
    wide = load_weights(files, spec, dtype=torch.float32, device="cpu")
    narrow = load_int8_weights(files, spec, int8_arithmetic())
    return compare(_built(spec, wide, longest), _built(spec, narrow, longest), spec, windows)


def _built(spec: ModelSpec, weights: Weights, max_len: int) -> Decoder:
    shape = head_shape(spec, DEFAULT_BLOCK_SIZE, torch.float32)
    kernels = kernels_for("cpu", shape, batch_invariant=False)
    return build_model(spec, weights, kernels, shape, max_len=max_len, tp=TensorParallel())


def _accuracy(entry: Any) -> Accuracy | None:
    """What a file says, if it is one of ours."""
    try:
        return Accuracy(**{name: type_(entry[name]) for name, type_ in _FIELDS.items()})
    except (TypeError, ValueError, KeyError):
        return None


_FIELDS = {
    "num_tokens": int,
    "perplexity": float,
    "divergence": float,
    "agreement": float,
    "clear_agreement": float,
}
