"""The config of a quantised checkpoint -> Quantisation. No torch.

It is in config.json as `quantization_config`, or in a file of the tool that made the checkpoint.
Anything unknown is refused with its file, field and value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.weights.checkpoint import checked_file
from quire.weights.json_file import read_json
from quire.weights.quantised.compressed import read_compressed
from quire.weights.quantised.layout import Layout, Quantisation, Rule, refused
from quire.weights.quantised.modelopt import read_modelopt
from quire.weights.quantised.patterns import Names, expression, read_names

# Files that tools write beside config.json, and the method that each implies.
ALONE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
GPTQ_BITS = (2, 3, 4, 8)
# Methods' names in files, and the names of the option `quantization`.
SAME_METHOD = {
    "gptq_v2": "gptq",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "modelopt",
    "compressed_tensors": "compressed-tensors",
}
# AutoRound's layouts: by `packing_format`, the method and its kind of zero points.
AUTO_ROUND = ("auto-round", "intel/auto-round")
_PACKED: dict[str, dict[str, Any]] = {
    "auto_round:auto_gptq": {"quant_method": "gptq"},
    **dict.fromkeys(("auto_round", "auto_round:gptqmodel"), {"quant_method": "gptq_v2"}),
    "auto_round:auto_awq": {"quant_method": "awq"},
}
PLAIN_BITS = 16
_KEYS = ("quantization_config", "compression_config")


def read_quantisation(directory: Path, config: Mapping[str, Any]) -> Quantisation | None:
    """How a model's files say that weights are quantised; None if they do not."""
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    for holder in (config, inner):
        for key in _KEYS:
            if holder.get(key):
                return from_fields(_object(holder[key], f"config.json: {key}"))
    for name, method in ALONE.items():
        if (directory / name).exists():
            values = read_json(checked_file(directory, name))
            values = {**values, **(values.get("quantization") or {})}
            return from_fields(Fields({"quant_method": method, **values}, name))
    return None


def without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without its quantisation."""
    left = {key: value for key, value in config.items() if key not in _KEYS}
    if isinstance(text := left.get("text_config"), dict):
        left["text_config"] = without_quantisation(text)
    return left


def _object(value: Any, source: str) -> Fields:
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{source} must be an object, it is {str(value)[:100]}")
    return Fields(value, source)


def from_fields(fields: Fields) -> Quantisation:
    said = fields.word("quant_method", "").lower()
    if not said and (fields.values.get("load_in_4bit") or fields.values.get("load_in_8bit")):
        said = "bitsandbytes"
    if said in AUTO_ROUND:
        return from_fields(_auto_round(fields))
    method = SAME_METHOD.get(said, said)
    reader = _READERS.get(method)
    if reader is None:
        raise refused(fields, "quant_method", "these layouts are not read")
    rules = reader(fields)
    return Quantisation(method, fields.source, rules)


def _skipped(fields: Fields, *keys: str) -> tuple[Rule, ...]:
    found = (read_names(fields.values.get(key), fields.source, key) for key in keys)
    return tuple(Rule(names, None) for names in found if names != Names())


def _auto_round(fields: Fields) -> Fields:
    """AutoRound's config, as the config of the tool whose layout it uses. `extra_config` has
    modules with other numbers; those of 16 bits and more are plain."""
    packing = fields.word("packing_format", "auto_round:auto_gptq").lower()
    if packing not in _PACKED:
        raise refused(fields, "packing_format", f"of AutoRound {', '.join(_PACKED)} are read")
    if fields.word("data_type", "int").lower() != "int":
        raise refused(fields, "data_type", "of AutoRound whole numbers (int) are read")
    extra = fields.values.get("extra_config") or {}
    if not isinstance(extra, dict) or not all(isinstance(one, dict) for one in extra.values()):
        raise refused(fields, "extra_config", "it must be an object of modules")
    plain = [
        name for name, said in extra.items() if Fields(said, "").count("bits", 1) >= PLAIN_BITS
    ]
    others = {f"{name}$": said for name, said in extra.items() if name not in plain}
    said = {
        key: fields.values[key] for key in ("bits", "group_size", "sym") if key in fields.values
    }
    said |= _PACKED[packing]
    if said["quant_method"] != "awq":
        said["dynamic"] = {**{f"-:{name}$": {} for name in plain}, **others}
    elif others:
        raise refused(fields, "extra_config", "modules with other bits are read in GPTQ's layout")
    return Fields({**said, "modules_to_not_convert": plain}, fields.source)


def _awq(fields: Fields) -> tuple[Rule, ...]:
    for key in ("version", "format", "checkpoint_format"):  # keys of two tools, in several versions
        if fields.word(key, "gemm").lower() != "gemm":
            raise refused(fields, key, "of AWQ only gemm is read")
    key = "bits" if "bits" in fields.values else "w_bit"
    if fields.count(key, 4) != 4:
        raise refused(fields, key, "AWQ has 4 bits here")
    if not fields.flag("zero_point", True):
        raise refused(fields, "zero_point", "AWQ has zero points here")
    sizes = "group_size" if "group_size" in fields.values else "q_group_size"
    layout = Layout("awq", 4, _group(fields, sizes), symmetric=False)
    return (*_skipped(fields, "modules_to_not_convert"), Rule(None, layout))


def _gptq(fields: Fields) -> tuple[Rule, ...]:
    key = "checkpoint_format" if "checkpoint_format" in fields.values else "format"
    stored = fields.word(key, "gptq").lower()
    if fields.values.get("is_marlin_format") or stored not in ("gptq", "gptq_v2"):
        raise refused(fields, key, "of GPTQ gptq and gptq_v2 are read")
    if fields.values.get("rotation"):
        raise refused(fields, "rotation", "weights that were turned before are not read")
    is_second = stored == "gptq_v2" or fields.values.get("quant_method") == "gptq_v2"
    rules = _dynamic(fields, is_second=is_second)
    return (
        *rules,
        *_skipped(fields, "modules_to_not_convert"),
        Rule(None, _gptq_layout(fields, is_second)),
    )


def _gptq_layout(fields: Fields, is_second: bool) -> Layout:
    bits = fields.count("bits")
    if bits not in GPTQ_BITS:
        raise refused(fields, "bits", "GPTQ is read in 2, 3, 4 and 8 bits")
    # Where a config does not say it, zero points are taken as they are stored.
    group, symmetric = _group(fields, "group_size"), fields.flag("sym", False)
    return Layout("gptq", bits, group, symmetric, zeros_less_one=not is_second)


def _dynamic(fields: Fields, *, is_second: bool) -> tuple[Rule, ...]:
    """Rules for GPTQ's `dynamic`: modules that match '-:expression' are not quantised, others have
    other numbers."""
    given = fields.values.get("dynamic") or {}
    if not isinstance(given, dict):
        raise refused(fields, "dynamic", "it must be an object of expressions")
    rules = []
    for pattern, changes in given.items():
        names = Names(
            (),
            (expression(pattern.removeprefix("+:").removeprefix("-:"), fields.source, "dynamic"),),
        )
        if pattern.startswith("-:") or changes is False:
            rules.append(Rule(names, None))
            continue
        if not isinstance(changes, dict):
            raise refused(fields, "dynamic", f"{pattern[:100]!r} must say what is other there")
        changed = Fields({**fields.values, **changes}, f"{fields.source}: dynamic")
        rules.append(Rule(names, _gptq_layout(changed, is_second)))
    return tuple(rules)


def _fp8(fields: Fields) -> tuple[Rule, ...]:
    if fields.word("fmt", "e4m3").lower() not in ("e4m3", "float8_e4m3fn"):
        raise refused(fields, "fmt", "of fp8 e4m3 is read")
    block = fields.values.get("weight_block_size")
    whole = isinstance(block, list) and len(block) == 2
    if block is not None and not (whole and all(isinstance(one, int) and one > 0 for one in block)):
        raise refused(fields, "weight_block_size", "it must be two whole numbers")
    layout = Layout("fp8", 8, block=None if block is None else (block[0], block[1]))
    skipped = _skipped(fields, "modules_to_not_convert", "ignored_layers", "ignore")
    return (*skipped, Rule(None, layout))


def _mxfp4(fields: Fields) -> tuple[Rule, ...]:
    return (*_skipped(fields, "modules_to_not_convert"), Rule(None, Layout("mxfp4", 4, 32)))


def _bitsandbytes(fields: Fields) -> tuple[Rule, ...]:
    skipped = _skipped(fields, "llm_int8_skip_modules")
    if not fields.flag("load_in_4bit", False) and not fields.flag("_load_in_4bit", False):
        return (*skipped, Rule(None, Layout("int", 8)))
    if fields.word("bnb_4bit_quant_type", "fp4") not in ("nf4", "fp4"):
        raise refused(fields, "bnb_4bit_quant_type", "of bitsandbytes nf4 and fp4 are read")
    if fields.word("bnb_4bit_quant_storage", "uint8").removeprefix("torch.") != "uint8":
        raise refused(fields, "bnb_4bit_quant_storage", "codes are read from bytes (uint8)")
    return (*skipped, Rule(None, Layout("nf4", 4)))


def _bitnet(fields: Fields) -> tuple[Rule, ...]:
    if fields.word("quantization_mode", "offline") != "offline":
        why = "weights are rounded in every pass, for training. Take the model's packed weights"
        raise refused(fields, "quantization_mode", why)
    if fields.flag("use_rms_norm", False):
        raise refused(fields, "use_rms_norm", "a norm before every product is not read")
    kind = fields.word("linear_class", "bitlinear")
    if kind not in ("bitlinear", "autobitlinear"):
        raise refused(fields, "linear_class", "bitlinear and autobitlinear are read")
    layout = Layout("ternary", 2, divides=kind == "bitlinear")
    return (*_skipped(fields, "modules_to_not_convert"), Rule(None, layout))


def _group(fields: Fields, key: str) -> int:
    """Columns of a group; -1 in the config means a whole row."""
    if fields.values.get(key) == -1:
        return 0
    return fields.count(key, 128)


_READERS: dict[str, Callable[[Fields], tuple[Rule, ...]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": read_compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "modelopt": read_modelopt,
    "bitsandbytes": _bitsandbytes,
    "bitnet": _bitnet,
}
METHODS = tuple(_READERS)
