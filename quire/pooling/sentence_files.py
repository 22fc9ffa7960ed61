"""The files of a sentence-transformers directory: which modules follow the model. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders.family import Dense, LayerNorm, read_activation
from quire.families.fields import Fields
from quire.pooling.spec import PoolingType, Projection
from quire.weights.checkpoint import check_inside
from quire.weights.json_file import parse_array, read_json

MODULES = "modules.json"
_MODES: Mapping[str, PoolingType] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
}
_NAMED: Mapping[str, PoolingType] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "max": "max",
    "weightedmean": "weightedmean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
_INPUT, _TOKENS = "sentence_embedding", "token_embeddings"
_NORM_EPS = 1e-5
_CONFIGS = ("sentence_bert_config.json", "sentence_roberta_config.json")


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """What the directory says. `pooling` None: there is none, each token has its own vector."""

    pooling: PoolingType | None
    normalise: bool
    projections: tuple[Projection, ...]
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lower_case: bool = False
    max_len: int | None = None


def read_sentence_files(directory: Path) -> SentenceFiles | None:
    """What a directory's modules.json and the files it names say; None where it has none."""
    if not (directory / MODULES).is_file():
        return None
    pooling: PoolingType | None = None
    projections: list[Projection] = []
    normalise = False
    for kind, folder in _modules(directory):
        if normalise:
            raise UnsupportedModel(f"{MODULES}: {kind} after Normalize; quire has it last")
        if kind == "Pooling":
            if pooling or projections:
                raise UnsupportedModel(
                    f"{MODULES}: Pooling after another module; quire has it first"
                )
            pooling = _pooling(_config(directory, folder))
        elif kind in _PROJECTIONS:
            fields = _config(directory, folder)
            _check_input(fields, whole=pooling is not None)
            projections.append(_PROJECTIONS[kind](fields, folder))
        elif kind == "Normalize":
            normalise = True
        elif kind not in ("Transformer", "Dropout"):  # nothing is dropped but in training
            raise UnsupportedModel(
                f"{MODULES}: module {kind!r}; quire has Transformer, Pooling, "
                f"{', '.join(_PROJECTIONS)}, Dropout and Normalize"
            )
    prompts, default = _prompts(directory)
    lengths = [_sentence_config(directory, name) for name in _CONFIGS]
    max_len, lower_case = next((one for one in lengths if one is not None), (None, False))
    return SentenceFiles(
        pooling, normalise, tuple(projections), prompts, default, lower_case, max_len
    )


def _modules(directory: Path) -> list[tuple[str, str]]:
    """(kind, folder) of every module, in order; the kind is the last word of its type."""
    listed = parse_array(_inside(directory, MODULES).read_bytes(), MODULES)
    found = []
    for one in listed:
        fields = Fields(one if isinstance(one, dict) else {}, MODULES)
        found.append((fields.word("type").rsplit(".", 1)[-1], fields.word("path", "")))
    if not found or found[0][0] != "Transformer":
        raise UnsupportedModel(f"{MODULES}: the first module must be a Transformer")
    if found[0][1]:
        raise UnsupportedModel(
            f"{MODULES}: the Transformer is in {found[0][1]!r}; quire has it beside {MODULES}"
        )
    return found


def _inside(directory: Path, name: str) -> Path:
    """A file of the model; one that leads out of it is refused."""
    return check_inside(directory, directory / name)


def _config(directory: Path, folder: str) -> Fields:
    if not folder or folder.startswith("/") or ".." in Path(folder).parts or "\\" in folder:
        raise CorruptModel(f"{MODULES}: {folder[:80]!r} is no folder of the model; refused")
    name = f"{folder}/config.json"
    return Fields(read_json(_inside(directory, name)), name)


def _pooling(fields: Fields) -> PoolingType:
    named = fields.values.get("pooling_mode")
    if isinstance(named, str):  # the newer form: one word
        if named not in _NAMED:
            raise _no_such_pooling(fields, named)
        _check_prompt(fields)
        return _NAMED[named]
    said = {key: on for key, on in fields.values.items() if key.startswith("pooling_mode_")}
    if said:  # the mean is taken, too, where it is not said that it is not
        said.setdefault("pooling_mode_mean_tokens", True)
    modes = [key for key, on in said.items() if on]
    if len(modes) != 1:
        raise UnsupportedModel(
            f"{fields.source}: {len(modes)} kinds of pooling at once ({', '.join(modes)[:200]}); "
            "quire has one"
        )
    if modes[0] not in _MODES:
        raise _no_such_pooling(fields, modes[0])
    _check_prompt(fields)
    return _MODES[modes[0]]


def _no_such_pooling(fields: Fields, named: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{fields.source}: {named[:60]!r} is not built; quire has {', '.join(_NAMED)}"
    )


def _check_prompt(fields: Fields) -> None:
    if not fields.flag("include_prompt", True):
        raise UnsupportedModel(
            f"{fields.source}: include_prompt is false, which leaves a prompt's tokens out of the "
            "mean; quire counts every token"
        )


def _check_input(fields: Fields, *, whole: bool) -> None:
    """That a module is about what the one before it made: the vector of a `whole` text, or those
    of tokens."""
    for key in ("module_input_name", "module_output_name"):
        if fields.word(key, _INPUT) != _INPUT and (whole or fields.values[key] != _TOKENS):
            raise fields.unsupported(key, _INPUT)
    if fields.flag("use_residual", False):
        raise fields.unsupported("use_residual", "false: quire has no sum around it")


def _dense(fields: Fields, folder: str) -> Projection:
    return Projection(
        folder,
        Dense("linear", read_activation(fields, "activation_function", "Tanh")),
        columns=fields.count("in_features"),
        rows=fields.count("out_features"),
        bias=fields.flag("bias", True),
    )


def _norm(fields: Fields, folder: str) -> Projection:
    size = fields.count("dimension")
    return Projection(folder, LayerNorm("norm", _NORM_EPS), columns=size, rows=size, bias=True)


_PROJECTIONS: Mapping[str, Callable[[Fields, str], Projection]] = {
    "Dense": _dense,
    "LayerNorm": _norm,
}


def _prompts(directory: Path) -> tuple[dict[str, str], str | None]:
    name = "config_sentence_transformers.json"
    if not (directory / name).is_file():
        return {}, None
    fields = Fields(read_json(_inside(directory, name)), name)
    given: dict[str, Any] = dict(fields.inner("prompts").values)
    for key, value in given.items():
        if not isinstance(value, str):
            raise CorruptModel(f"{name}: prompts has {key[:40]!r}, which is no text")
    default = fields.values.get("default_prompt_name")
    if default is not None and default not in given:
        raise CorruptModel(f"{name}: default_prompt_name {default!r:.60} is none of its prompts")
    return given, default


def _sentence_config(directory: Path, name: str) -> tuple[int | None, bool] | None:
    """(longest text, lower case) of one of the files that may say it."""
    if not (directory / name).is_file():
        return None
    fields = Fields(read_json(_inside(directory, name)), name)
    length = fields.values.get("max_seq_length")
    return None if length is None else fields.count("max_seq_length"), fields.flag(
        "do_lower_case", False
    )
