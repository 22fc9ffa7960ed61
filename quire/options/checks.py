"""The rules of single option values: each takes the name and the value and returns the value in
its plain form, raises InvalidOption for one that cannot work and NotSupported for one that
could but is not built."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported
from quire.options.plugins import installed
from quire.params.rules import MAX_SEED, MIN_SEED, fail, number, one_of, show, truth, whole

Check = Callable[[str, Any], Any]

MOST_BLOCK, _TILE = 65_536, 128  # tokens
FIT_TO_MEMORY = -1  # max_model_len: what the model and the KV cache allow

DTYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
# Names for one type: e4m3, with a scale per token and head that is computed when KV is stored.
FP8_KV = ("fp8", "fp8_e4m3", "fp8_per_token_head")


def flag(name: str, value: Any) -> bool:
    return truth(InvalidOption, name, value)


def integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        return whole(InvalidOption, name, value, low=low, high=high)

    return check


def text(name: str, value: Any) -> str:
    """A string or a path, as a string."""
    if not isinstance(value, str | os.PathLike):
        fail(InvalidOption, name, "a string", value)
    plain = os.fspath(value)
    if not isinstance(plain, str) or not plain or "\0" in plain:
        fail(InvalidOption, name, "a non-empty string without NUL characters", value)
    return plain


def mapping(name: str, value: Any) -> dict[str, Any]:
    if callable(value):
        raise NotSupported(f"{name} as a function is not built: pass a dict of what it changes.")
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        fail(InvalidOption, name, "a dict with string keys", value)
    return dict(value)


def choice(*built: str, others: tuple[str, ...] = (), instead: str = "") -> Check:
    """One of `built`; `others` are names that exist elsewhere, with what to do `instead`."""

    def check(name: str, value: Any) -> str:
        if isinstance(value, str) and value in others:
            raise NotSupported(f"{name}={value!r} is not built. {instead}")
        return one_of(InvalidOption, name, value, built, instead)

    return check


def dtype(name: str, value: Any) -> str | None:
    """One name per type: "half" and torch.float16 -> "float16"; "auto" -> None."""
    word = str(value).removeprefix("torch.")
    if word == "auto":
        return None
    return DTYPES[one_of(InvalidOption, name, word, ("auto", *DTYPES))]


def kv_dtype(name: str, value: Any) -> str:
    word = str(value).removeprefix("torch.")
    if word == "auto":
        return word
    if word in DTYPES:
        return DTYPES[word]
    if word in FP8_KV:
        return "fp8"
    raise NotSupported(
        f"{name}={show(value)} is not built: the KV cache holds floats, or on a GPU fp8 (e4m3 with "
        "a scale per token and head). Use 'auto', 'fp8', 'float16', 'bfloat16' or 'float32'."
    )


# Kinds of checkpoints with quantised weights, and other names for these.
CHECKPOINTS = (
    *("awq", "gptq", "compressed-tensors", "fp8", "modelopt", "mxfp4", "bitsandbytes"),
    *("bitnet", "gguf"),
)
SAME_CHECKPOINT = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "modelopt",
}


def quantization(name: str, value: Any) -> str:
    """ "none": computed in `dtype`; "int8": matrices and activations in bytes, on a CPU; or the
    name of the checkpoint's own kind."""
    if not isinstance(value, str):
        fail(InvalidOption, name, "None or a string", value)
    word = SAME_CHECKPOINT.get(value, value)
    if word in ("none", "int8", *CHECKPOINTS):
        return word
    raise NotSupported(
        f"{name}={show(value)} is not built. Leave it out: a checkpoint is read as what it is "
        f"({', '.join(CHECKPOINTS)}). Or use 'none' (computed in dtype) or 'int8' (on a CPU)."
    )


def device(name: str, value: Any) -> str | None:
    word = str(value)
    if word == "auto":
        return None
    if word.startswith("cuda:"):
        hint = "Choose the GPU with CUDA_VISIBLE_DEVICES."
        fail(InvalidOption, name, "'auto', 'cpu' or 'cuda'", value, hint)
    if word in ("cpu", "cuda"):
        return word
    raise NotSupported(f"{name}={show(value)} is not built: use 'cpu' or 'cuda'.")


def block_size(name: str, value: Any) -> int:
    """Tiles of attention (128 keys, or a power of two below) begin where blocks do, or these where
    tiles do."""
    size = whole(InvalidOption, name, value, low=1, high=MOST_BLOCK)
    if size % _TILE and (size > _TILE or size & (size - 1)):
        rule = f"a power of two up to {_TILE}, or a multiple of {_TILE} up to {MOST_BLOCK:,}"
        fail(InvalidOption, name, rule, value)
    return size


def share(name: str, value: Any) -> float:
    hint = "It is the share of the device's memory to use."
    return number(InvalidOption, name, value, low=0.0, high=1.0, above=True, hint=hint)


def max_model_len(name: str, value: Any) -> int:
    """FIT_TO_MEMORY for "auto" and -1."""
    if value == "auto" or (value == FIT_TO_MEMORY and not isinstance(value, float)):
        return FIT_TO_MEMORY
    hint = "-1 or 'auto' is as long as the model and the KV cache allow."
    return whole(InvalidOption, name, value, low=1, high=2**31 - 1, hint=hint)


def num_devices(name: str, value: Any) -> int:
    """How many devices; scripts pass torch's count, which is 0 without a GPU."""
    count = whole(InvalidOption, name, value, low=0, high=2**20)
    if count == 0:
        warn(f"{name}=0 is taken as 1: the model runs on the CPU where there is no GPU.")
    return max(count, 1)


def seed(name: str, value: Any) -> int:
    return whole(InvalidOption, name, value, low=MIN_SEED, high=MAX_SEED)


def processors(name: str, value: Any) -> tuple[type[Any], ...]:
    """Classes of logits processors, or where to find them: "my_module:MyProcessor", or the name
    of an entry point that an installed package offers."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        fail(InvalidOption, name, 'a list of classes or of "module:Class"', value)
    return tuple(_processor(name, one) for one in value)


def _processor(name: str, given: Any) -> type[Any]:
    found = _imported(name, given) if isinstance(given, str) else given
    methods = ("is_argmax_invariant", "update_state", "apply")
    if not isinstance(found, type) or not all(hasattr(found, method) for method in methods):
        hint = "Functions of one request go into SamplingParams(logits_processors=...)."
        fail(InvalidOption, name, f"made of classes with {', '.join(methods)}", given, hint)
    if missing := getattr(found, "__abstractmethods__", None):
        rule = f"made of finished classes; {found.__name__} lacks {', '.join(sorted(missing))}"
        fail(InvalidOption, name, rule, given)
    return found


def _imported(name: str, given: str) -> Any:
    module, _, path = given.partition(":")
    if not path:
        return _offered(name, given)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        fail(InvalidOption, name, 'made of "module:Class" that can be imported', given, f"{error}.")
    return found


def _offered(name: str, given: str) -> Any:
    offers = installed()
    if given not in offers:
        rule = 'made of "module:Class" or of names of installed processors'
        names = f"There are {', '.join(sorted(offers))}." if offers else "None is installed."
        fail(InvalidOption, name, rule, given, names)
    try:
        return offers[given].load()
    except (ImportError, AttributeError) as error:
        fail(InvalidOption, name, "made of processors that can be imported", given, f"{error}.")


def hf_token(name: str, value: Any) -> bool | str:
    """The message leaves the value out: it may be a secret typed into the wrong form."""
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise InvalidOption(f"{name} must be a string, True or False.", parameter=name)


MEDIA_KINDS = ("image", "audio", "video")


def limit_mm_per_prompt(name: str, value: Any) -> dict[str, int] | None:
    """{"image": 4}, or {"image": {"count": 4, ...}} as in vLLM, whose sizes only decide how much
    memory it reserves. With 0 the model's encoder of that kind is not loaded."""
    limits = {}
    for kind, given in mapping(name, value).items():
        if kind not in MEDIA_KINDS:
            fail(InvalidOption, name, f"a dict with keys among {', '.join(MEDIA_KINDS)}", value)
        count = given.get("count", 999) if isinstance(given, dict) else given
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            fail(InvalidOption, name, "a dict of whole numbers from 0", value)
        limits[kind] = count
    return limits or None


def folder(name: str, value: Any) -> str | None:
    """A path as a string; None for an empty one."""
    return None if value == "" else text(name, value)


def domains(name: str, value: Any) -> tuple[str, ...]:
    """A list of host names; name:port where the port is not the scheme's default."""
    given: list[Any] = list(value) if isinstance(value, list | tuple | set) else [None]
    if not all(isinstance(one, str) and one and not set(one) & set("/*@ ") for one in given):
        fail(InvalidOption, name, 'a list of names of hosts, such as "cdn.example.com"', value)
    return tuple(given)
