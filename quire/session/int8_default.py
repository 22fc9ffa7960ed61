"""Whether 8-bit arithmetic is the default for a model: fast here, and accurate enough.

The accuracy is known for the default model, and measured once for any other by reading some text
both ways; the verdict is kept in QUIRE_HOME under a fingerprint of the weights.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from msgspec import ValidationError, convert

from quire.backends.choose import kernels_for
from quire.base.home import add_entry, read_entries
from quire.base.notes import note
from quire.errors import ModelNotFound
from quire.executor.cpu.accuracy import Accuracy, Tally, hidden_states, tally_window
from quire.executor.cpu.int8_probe import int8_arithmetic, int8_probe
from quire.executor.probe import LEAST_GAIN, available_memory
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from quire.models.weight_parts import Weights
from quire.options import Options
from quire.options.checks import CHECKPOINTS
from quire.options.decide import DEFAULT_BLOCK_SIZE
from quire.session.fingerprint import model_fingerprint
from quire.session.layerwise import LayerwiseModel
from quire.session.quantisation import weight_facts
from quire.spec import ModelSpec
from quire.weights.load import load_int8_weights
from quire.weights.source import ModelFiles

# Change this with the arithmetic: verdicts about another arithmetic do not count.
ARITHMETIC = "hadamard-64, keys and values in bfloat16 where attention is in tiles"
# Measured with tests/session/test_int8_default.py, which checks the value.
KNOWN = {
    # SmolLM2-135M-Instruct in Q4_1 and Q8_0, what the alias "smollm2" fetches.
    "b4efee77614012bd69413222222d61db": Accuracy(4000, 0.0068, 0.0050, 0.961, 0.9996),
}
KEPT = "accuracy.json"
WINDOW = 256
# How much text is read, at most and at least. In between it is limited by multiply-adds in float32,
# so that it takes seconds rather than minutes on two cores.
MOST_TOKENS, LEAST_TOKENS, MOST_WORK = 4096, 128, 4e11
TOPICS = ("exceptions", "import", "naming", "objects", "numbers", "execmodel", "with")


@dataclass(frozen=True, slots=True)
class Int8Default:
    """Why 8-bit arithmetic is the default for a model here; empty if it is not. `weights` are set
    if they had to be loaded to find out."""

    why: str = ""
    weights: Weights | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A measured accuracy, and the 8-bit weights it was measured with if they were just loaded."""

    accuracy: Accuracy
    weights: Weights | None = None


def int8_fits(files: ModelFiles, spec: ModelSpec, options: Options, *, steady: bool) -> Int8Default:
    """Whether a model runs in 8-bit arithmetic by default.

    It does if its weights were quantised in its files, C computes it (`steady`), 8 bits are clearly
    faster than floats on this machine, and its accuracy is enough."""
    asked = options.quantization not in (None, *CHECKPOINTS) or options.dtype is not None
    if asked or not steady or not weight_facts(files).stored or options.load_format == "dummy":
        return Int8Default()
    if int8_probe().gain < LEAST_GAIN:
        return Int8Default()
    if spec.keeps_states:
        _note_unchecked("its layers keep states")
        return Int8Default()
    checked = accuracy_of(files, spec)
    if checked is None:
        return Int8Default()
    if not checked.accuracy.passes:
        note(f"8-bit arithmetic is not accurate enough for this model: {checked.accuracy.text}")
        return Int8Default()
    return Int8Default(f"faster than floats here; {checked.accuracy.text}", checked.weights)


def accuracy_of(files: ModelFiles, spec: ModelSpec) -> Checked | None:
    """The accuracy of a model, known or measured; None, with a note why, if it cannot be."""
    key = model_fingerprint(files, spec, ARITHMETIC)
    if key in KNOWN:
        return Checked(KNOWN[key])
    if (known := _accuracy(read_entries(KEPT).get(key))) is not None:
        return Checked(known)
    needed, free = _bytes_needed(spec), available_memory()
    if needed > free:
        _note_unchecked(f"it takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
        return None
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(MOST_WORK / _num_weights(spec))))
    size = min(WINDOW, tokens)
    try:
        windows = text_windows(files, tokens // size, size)
    except ModelNotFound:
        _note_unchecked("its directory has no tokenizer to read text with")
        return None
    if not windows:
        _note_unchecked("this Python was installed without the text for it (pydoc_data)")
        return None
    note(
        f"checking 8-bit arithmetic on this model, once: up to {tokens:,} tokens are read both ways"
    )
    started = time.perf_counter()
    found = measure(files, spec, windows)
    seconds = time.perf_counter() - started
    note(f"checked 8-bit arithmetic in {seconds:.1f} s: {found.accuracy.text}")
    add_entry(KEPT, key, asdict(found.accuracy))
    return found


def _note_unchecked(why: str) -> None:
    note(
        f"8-bit arithmetic was not checked on this model ({why}), so it runs in floats, which take "
        'longer. quantization="int8" takes it unchecked.'
    )


def _num_weights(spec: ModelSpec) -> int:
    return spec.body_weights + spec.head_weights


def _bytes_needed(spec: ModelSpec) -> int:
    """Bytes of the model in 8 bits, and of its embedding and two copies of a layer in float32."""
    layer = spec.body_weights // spec.num_layers
    return spec.body_weights + 2 * spec.head_weights + 4 * (spec.head_weights + 2 * layer)


def text_windows(files: ModelFiles, count: int, size: int) -> list[list[int]]:
    """Windows of token ids from prose that comes with Python; empty if that is not installed."""
    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.inputs.hf_tokenizer import load_hf_tokenizer

    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    if files.kind == "gguf":
        tokenizer = load_gguf_tokenizer(files.gguf.metadata)
    else:
        tokenizer = load_hf_tokenizer(files.path)
    text = "\n\n".join(topics[name] for name in TOPICS if name in topics)
    ids = [int(token) for token in tokenizer.encode(text)]
    count = min(count, len(ids) // size)
    apart = len(ids) // max(1, count)
    return [ids[i * apart : i * apart + size] for i in range(count)]


def measure(
    files: ModelFiles, spec: ModelSpec, windows: list[list[int]], *, all_of_it: bool = False
) -> Checked:
    """Read windows in float32 and in 8 bits: a quarter of them, and the rest if the verdict is not
    clear by then (or with `all_of_it`)."""
    narrow = load_int8_weights(files, spec, int8_arithmetic())
    rounded = _built(spec, dict(narrow), max(len(window) for window in windows))
    exact, tally = LayerwiseModel(files, spec), Tally()
    first = len(windows) if all_of_it else max(1, len(windows) // 4)
    for some in (windows[:first], windows[first:]):
        if not some or (tally.num_tokens and tally.is_sure):
            break
        with torch.inference_mode():
            for window, hidden in zip(some, exact.hidden(some), strict=True):
                theirs = hidden_states(rounded, spec, window)
                tally_window(tally, spec, window, (exact.logits, rounded.logits), (hidden, theirs))
    return Checked(tally.accuracy, narrow)


def _built(spec: ModelSpec, weights: Weights, max_len: int) -> Decoder:
    shape = head_shape(spec, DEFAULT_BLOCK_SIZE, torch.float32)
    kernels = kernels_for("cpu", shape, batch_invariant=False)
    return build_model(spec, weights, kernels, shape, max_len=max_len, tp=TensorParallel())


def _accuracy(entry: Any) -> Accuracy | None:
    """The accuracy in a kept entry; None if the entry has another form."""
    try:
        return convert(entry, Accuracy)
    except ValidationError:
        return None
