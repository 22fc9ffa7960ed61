"""The files of a sentence-transformers directory: the modules after the model. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders.family import Dense, LayerNorm, read_activation
from quire.families.fields import Fields
from quire.pooling.spec import PoolingType, Projection, TokenRows
from quire.weights.checkpoint import checked_file
from quire.weights.json_file import parse_array, read_json

MODULES = "modules.json"
_MODES: Mapping[str, PoolingType] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: Mapping[str, PoolingType] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "max": "max",
    "weightedmean": "weightedmean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
_INPUT, _TOKENS, _LOGITS = "sentence_embedding", "token_embeddings", "causal_logits"
_NORM_EPS = 1e-5
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_CONFIGS = tuple(f"sentence_{kind}_config.json" for kind in _KINDS)  # the first one counts


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """The settings of a directory. `pooling` (): none, each token has its own vector."""

    pooling: tuple[PoolingType, ...] = ()
    normalise: bool = False
    projections: tuple[Projection, ...] = ()
    scored_by: TokenRows | None = None  # score pairs by the logits of two tokens
    activation: str | None = None  # activation of pairs' scores
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    cut_to: int | None = None
    chat: Mapping[str, Any] | None = None
    lower_case: bool = False
    max_len: int | None = None
    pools_prompt: bool = True  # whether pooling counts the tokens of a prompt


def read_sentence_files(directory: Path, model: Path) -> SentenceFiles | None:
    """Read a directory's modules.json and the files that it names; None if it has none. `model` is
    the directory of its Transformer: itself, or a folder in it."""
    if not (directory / MODULES).is_file():
        return None
    pooling: tuple[PoolingType, ...] = ()
    projections: list[Projection] = []
    normalise, pools_prompt = False, True
    scored_by = None
    said = _general(directory, model)
    for kind, folder in _modules(directory):
        if normalise:
            raise UnsupportedModel(f"{MODULES}: {kind} after Normalize; quire has it last")
        if kind == "Pooling":
            if pooling or projections:
                raise UnsupportedModel(
                    f"{MODULES}: Pooling after another module; quire has it first"
                )
            fields = _config(directory, folder)
            pooling, pools_prompt = _pooling(fields), fields.flag("include_prompt", True)
        elif kind == "LogitScore":
            scored_by = _token_rows(_config(directory, folder))
        elif kind in _PROJECTIONS:
            fields = _config(directory, folder)
            _check_input(fields, whole=bool(pooling))
            projections.append(_PROJECTIONS[kind](fields, folder))
        elif kind == "Normalize":
            normalise = True
        elif kind not in ("Transformer", "Dropout"):  # dropout is for training only
            raise UnsupportedModel(
                f"{MODULES}: module {kind!r}; quire has Transformer, Pooling, "
                f"{', '.join(_PROJECTIONS)}, Dropout, Normalize and LogitScore"
            )
    return replace(
        said,
        pooling=pooling,
        normalise=normalise,
        projections=tuple(projections),
        scored_by=scored_by,
        pools_prompt=pools_prompt,
    )


def _modules(directory: Path) -> list[tuple[str, str]]:
    """(kind, folder) of every module, in order; the kind is the last word of its type."""
    listed = parse_array(checked_file(directory, MODULES).read_bytes(), MODULES)
    found = []
    for one in listed:
        fields = Fields(one if isinstance(one, dict) else {}, MODULES)
        found.append((fields.word("type").rsplit(".", 1)[-1], fields.word("path", "")))
    if not found or found[0][0] != "Transformer":
        first = repr(found[0][0][:80]) if found else "none"
        raise UnsupportedModel(f"{MODULES}: the first module must be a Transformer, it is {first}")
    return found


def _config(directory: Path, folder: str) -> Fields:
    name = f"{folder.rstrip('/')}/config.json"
    return Fields(read_json(checked_file(directory, name)), name)


def _pooling(fields: Fields) -> tuple[PoolingType, ...]:
    named = fields.values.get("pooling_mode")
    if named is not None:  # the newer form: one name, or several
        words, known = named if isinstance(named, list) else [named], _NAMED
    else:
        on = [key for key, on in fields.values.items() if key.startswith("pooling_mode_") and on]
        # Several are joined in the order of the table, not of the file.
        words, known = sorted(on, key=[*_MODES, *on].index), _MODES
    if not words:
        raise UnsupportedModel(f"{fields.source}: no kind of pooling is named")
    for word in words:
        if not isinstance(word, str) or word not in known:
            raise UnsupportedModel(
                f"{fields.source}: {str(word)[:60]!r} is not built; quire has {', '.join(_NAMED)}"
            )
    return tuple(known[word] for word in words)


def _token_rows(fields: Fields) -> TokenRows:
    if fields.word("module_input_name", _LOGITS) != _LOGITS:
        raise fields.unsupported("module_input_name", _LOGITS)
    ids = []
    for key in ("true_token_id", "false_token_id"):
        found = fields.ids(key)
        if len(found) > 1 or (not found and key == "true_token_id"):
            raise fields.wrong(key, "a token id")
        ids.append(found[0] if found else None)
    yes, no = ids
    return TokenRows(no, yes or 0)


def _check_input(fields: Fields, *, whole: bool) -> None:
    """Check that a module is for the result of the one before: the vector of a `whole` text, or
    those of tokens."""
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


def _general(directory: Path, model: Path) -> SentenceFiles:
    """Settings of the whole directory, and of how its Transformer reads texts."""
    said = _about_texts(model)
    name = "config_sentence_transformers.json"
    if not (directory / name).is_file():
        return said
    fields = Fields(read_json(checked_file(directory, name)), name)
    given: dict[str, Any] = dict(fields.inner("prompts").values)
    for key, value in given.items():
        if not isinstance(value, str):
            raise CorruptModel(f"{name}: prompts has {key[:40]!r}, which is no text")
    default = fields.values.get("default_prompt_name")
    if default is not None and default not in given:
        raise CorruptModel(f"{name}: default_prompt_name {default!r:.60} is none of its prompts")
    cut = fields.values.get("truncate_dim")
    return replace(
        said,
        prompts=given,
        default_prompt=default,
        activation=fields.word("activation_fn", "") or None,
        cut_to=None if cut is None else fields.count("truncate_dim"),
    )


def _template_options(given: Fields) -> dict[str, Any]:
    for key, value in given.values.items():
        if key != "chat_template" and value:
            raise given.unsupported(key, "left out")
    variables = dict(given.inner("chat_template").values)
    variables.pop("restore_suffix", None)  # for cut texts, which quire refuses
    asks = given.inner("chat_template").flag("add_generation_prompt", False)
    variables.pop("add_generation_prompt", None)
    return {"add_generation_prompt": asks, "chat_template_kwargs": variables}


def _about_texts(directory: Path) -> SentenceFiles:
    """How texts are read, from the first file that has the settings."""
    name = next((one for one in _CONFIGS if (directory / one).is_file()), None)
    if name is None:
        return SentenceFiles()
    fields = Fields(read_json(checked_file(directory, name)), name)
    for key in ("query_expansion", "query_length", "document_length"):
        if fields.values.get(key) is not None:
            raise fields.unsupported(key, "null: quire reads every text alike, as it is")
    chat = None
    if "message" in fields.inner("modality_config").values:
        chat = _template_options(fields.inner("processing_kwargs"))
    length = fields.values.get("max_seq_length")
    return SentenceFiles(
        chat=chat,
        lower_case=fields.flag("do_lower_case", False),
        max_len=None if length is None else fields.count("max_seq_length"),
    )
