"""The tokenizer of a Hugging Face model directory.

`tokenizer.json` decides how text is cut and which beginning and end tokens are added (older
`add_bos_token` settings beside it are ignored, as in transformers 5);
`tokenizer_config.json` names the special tokens and may add some, and has some flags
(config_flags.py). Code that a repository brings along (`auto_map`) is never run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.base.boundary import refusing
from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.inputs.config_flags import ANY_VOCABULARY, follow_flags
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.inputs.sentencepiece_file import sentencepiece_metadata
from quire.inputs.tiktoken_file import is_tiktoken, tiktoken_backend
from quire.inputs.tokenizer import Tokenizer
from quire.weights.checkpoint import check_inside
from quire.weights.json_file import refuse_pointer

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
# Vocabularies in other formats, which transformers knows how to convert.
_CONVERTIBLE = (
    *("tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "spiece.model"),
    *("sentencepiece.bpe.model", "vocab.txt"),
)
# Classes that use a SentencePiece file as it is, but for what the configuration adds.
_PLAIN_PIECES = (
    *("", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"),
)
_TYPES = "token_type_ids"
_LARGEST_FILE = 512 * 2**20
_PREFIX = "continuing_subword_prefix"
# A letter written as an escape, which no JSON writer makes and which could hide a name.
_ESCAPED_ASCII = re.compile(r"\\u00[2-7]")


def load_hf_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer in `directory`."""
    with refusing(lambda why: CorruptModel(f"the tokenizer in {directory} cannot be built: {why}")):
        return _built(directory)


def _built(directory: Path) -> Tokenizer:
    config = _read_json(directory, "tokenizer_config.json")
    legacy = _read_json(directory, "special_tokens_map.json")
    for name, value in legacy.items():
        config.setdefault(name, value)
    source = directory / "tokenizer.json"
    if source.is_file():
        backend = _read_backend(directory, source)
        _add_tokens(backend, config, source)
    elif (pieces := _own_pieces(directory, config)) is not None:
        backend = pieces
        _add_tokens(backend, config, source)
    elif (ranks := _own_ranks(directory, config)) is not None:
        backend = ranks
    else:
        backend = _converted(directory, config)
    follow_flags(backend, config)
    special = {name: text for name in NAMES if (text := _content(config.get(name))) is not None}
    length, inputs = config.get("model_max_length"), config.get("model_input_names")
    if not isinstance(inputs, list):
        inputs = () if config.get("tokenizer_class") in ANY_VOCABULARY else (_TYPES,)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=_chat_templates(directory, config),
        model_max_length=length if isinstance(length, int) and length > 0 else None,
        clean_up_spaces=bool(config.get("clean_up_tokenization_spaces", False)),
        gives_types=_TYPES in inputs,
    )


def _read_bytes(directory: Path, path: Path) -> bytes:
    """A file of the model in `directory`; a link that leads out of it is refused."""
    check_inside(directory, path)
    size = path.stat().st_size
    if size > _LARGEST_FILE:
        raise CorruptModel(
            f"{path} has {size:,} bytes; a tokenizer file has at most {_LARGEST_FILE:,}"
        )
    raw = path.read_bytes()
    refuse_pointer(raw, str(path))
    return raw


def _read_text(directory: Path, path: Path) -> str:
    raw = _read_bytes(directory, path)
    try:
        return raw.decode("utf-8-sig")  # as config.json is read: a mark of the order is no text
    except UnicodeDecodeError as error:
        raise CorruptModel(f"{path} is not UTF-8 text ({error}); fetch the model again") from None


def _read_json(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        return {}
    return _parsed(_read_text(directory, path), path)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    with refusing(
        lambda why: CorruptModel(f"{path} is not valid JSON ({why}); fetch the model again")
    ):
        value = json.loads(text)
    if not isinstance(value, dict):
        raise CorruptModel(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _read_backend(directory: Path, path: Path) -> Backend:
    from tokenizers import Tokenizer as Backend

    text = _read_text(directory, path)
    _check_merges(text, path)
    with refusing(
        lambda why: CorruptModel(
            f"{path} is not a tokenizer ({why}); fetch the model again, or if it is newer than "
            "this library, run: pip install -U tokenizers"
        )
    ):
        return Backend.from_str(text)


def _check_merges(text: str, path: Path) -> None:
    """Refuse merges whose right part lacks the prefix. The library removes that prefix without a
    check, which would crash the process."""
    if _PREFIX not in text and not _ESCAPED_ASCII.search(text):
        return
    model = _parsed(text, path).get("model")
    prefix = model.get(_PREFIX) if isinstance(model, dict) else None
    if not isinstance(prefix, str) or not prefix:
        return
    merges = model.get("merges") if isinstance(model, dict) else None
    for merge in merges if isinstance(merges, list) else []:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        right = parts[-1] if isinstance(parts, list) and parts else None
        if not isinstance(right, str) or not right.startswith(prefix):
            raise CorruptModel(
                f"{path}: {_PREFIX} is {prefix[:40]!r}, and a merge ends with {right!r:.60}, "
                "which does not begin with it"
            )


def _own_pieces(directory: Path, config: dict[str, Any]) -> Backend | None:
    """A tokenizer.model of SentencePiece, whose tokens are then SentencePiece's own: what
    transformers 5 makes of it lacks the first token and the space before the first word where
    there is no configuration, and is BPE where the pieces are not. None where it is none, or where
    a class of its own does more."""
    path = directory / "tokenizer.model"
    named = config.get("tokenizer_class") or ""
    if not path.is_file() or named not in _PLAIN_PIECES or config.get("auto_map"):
        return None
    metadata = sentencepiece_metadata(_read_bytes(directory, path), str(path))
    if metadata is None:
        return None
    for key, usual in (("add_bos_token", True), ("add_eos_token", False)):
        flag = config.get(key)
        metadata[f"tokenizer.ggml.{key}"] = flag if isinstance(flag, bool) else usual
    made = load_gguf_tokenizer(metadata, prefix_once=config.get("legacy") is False)
    for name, token in made.special_tokens.items():
        config.setdefault(name, token)
    return made.backend


def _own_ranks(directory: Path, config: dict[str, Any]) -> Backend | None:
    """A vocabulary of tiktoken that a class of the model's own reads; None where there is none, or
    where Transformers has the class."""
    named = sorted(directory.glob("*.tiktoken"))
    if config.get("auto_map"):
        named += [directory / name for name in ("tiktoken.model", "tokenizer.model")]
    for path in named:
        if path.is_file() and is_tiktoken(data := _read_bytes(directory, path)):
            return tiktoken_backend(data, config, str(path))
    return None


def _converted(directory: Path, config: dict[str, Any]) -> Backend:
    """A vocabulary in another format, through transformers; fills in what it learns there."""
    found = [name for name in _CONVERTIBLE if (directory / name).is_file()]
    if not found:
        raise ModelNotFound(
            f"{directory} has no tokenizer.json; pass tokenizer= with a directory that has one, or "
            "skip_tokenizer_init=True and prompts as token ids"
        )
    for path in directory.iterdir():
        if path.is_symlink() and path.is_file():  # transformers would read what it leads to
            check_inside(directory, path)
    way_out = "or save a tokenizer.json: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UnsupportedModel(
            f"{directory} has {found[0]} and no tokenizer.json; converting it takes transformers, "
            f"run: pip install transformers sentencepiece protobuf ({way_out})"
        ) from None
    try:
        made = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=False, local_files_only=True
        )
    except (ImportError, OSError, ValueError, TypeError, KeyError) as error:
        raise UnsupportedModel(
            f"{directory / found[0]} could not be converted: {' '.join(str(error).split())[:300]}; "
            f"it may take pip install sentencepiece protobuf, or tiktoken, {way_out}"
        ) from error
    backend: Backend | None = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModel(
            f"{directory} has a tokenizer that only runs in Python ({type(made).__name__}); "
            f"quire takes those with a tokenizer.json, {way_out}"
        )
    config.update(made.special_tokens_map)
    if found[0] == "tekken.json":
        _check_ranks(directory, backend)
        _begin_and_end(backend, config)
    return backend


def _check_ranks(directory: Path, backend: Backend) -> None:
    """Before 5.16 transformers counts the tokens of Mistral's own format as if no special ones came
    first, which gives other text without an error."""
    tekken = _read_json(directory, "tekken.json")
    first = tekken["config"]["default_num_special_tokens"]
    ranks = [entry["rank"] for entry in tekken["vocab"] if entry["token_bytes"] == "YQ=="]
    found = backend.encode("a", add_special_tokens=False).ids
    if ranks and found != [first + ranks[0]]:
        raise UnsupportedModel(
            f"{directory}/tekken.json has 'a' as token {first + ranks[0]}, and the installed "
            f"transformers makes {found} of it: pip install 'transformers>=5.16'"
        )


def _begin_and_end(backend: Backend, config: dict[str, Any]) -> None:
    """Mistral's own format names no ends: its library adds "<s>" before every text, and answers end
    with "</s>"."""
    from tokenizers.processors import TemplateProcessing

    for name, token in (("bos_token", "<s>"), ("eos_token", "</s>")):
        if not config.get(name) and backend.token_to_id(token) is not None:
            config[name] = token
    begin = _content(config.get("bos_token"))
    if begin is not None and not backend.num_special_tokens_to_add(is_pair=False):
        backend.post_processor = TemplateProcessing(
            single=[begin, "$A"],
            pair=[begin, "$A", "$B:1"],
            special_tokens=[(begin, backend.token_to_id(begin))],
        )


def _content(value: object) -> str | None:
    """A special token as files write it: text, or an object with its text as `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    if not isinstance(value, str) or not value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CorruptModel(
            f"a special token of the model's tokenizer is {value!r:.60}, which is not valid Unicode"
        ) from None
    return value


def _added_token(value: object, *, special: bool) -> AddedToken | None:
    from tokenizers import AddedToken

    content = _content(value)
    if content is None:
        return None
    flags = value if isinstance(value, Mapping) else {}
    chosen = {
        name: flags[name]
        for name in ("single_word", "lstrip", "rstrip", "normalized")
        if isinstance(flags.get(name), bool)
    }
    return AddedToken(content, special=special or bool(flags.get("special", False)), **chosen)


def _add_tokens(backend: Backend, config: Mapping[str, Any], source: Path) -> None:
    """Tokens that the configuration lists, as it has them (without a list those of tokenizer.json,
    as they are), of which the usual ones are special, and others that it names."""
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    if not isinstance(extra, Mapping | list):
        raise CorruptModel(
            f"additional_special_tokens beside {source} is {extra!r:.60}; it must be a list"
        )
    usual = [config.get(name) for name in NAMES]
    named = extra.values() if isinstance(extra, Mapping) else extra
    listed = config.get("added_tokens_decoder")
    try:
        in_order = [listed[key] for key in sorted(listed, key=int)] if listed else []
    except (TypeError, ValueError, AttributeError, LookupError):
        raise CorruptModel(
            f"added_tokens_decoder beside {source} is not a table of token ids"
        ) from None
    present = [*backend.get_added_tokens_decoder().values()]
    known, before = {token.content: token for token in present}, {*map(repr, present)}
    adding = dict(known) if listed is None else {}
    for value, special in [(v, False) for v in in_order] + [(v, True) for v in (*usual, *named)]:
        token = _added_token(value, special=special)
        if token is not None and not (special and token.content in known):
            adding.setdefault(token.content, token)
    for text in adding.keys() & {*map(_content, usual)}:
        adding[text].special = True
    backend.add_tokens([token for token in adding.values() if repr(token) not in before])


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; files of their own replace what the configuration holds."""
    templates: dict[str, str] = {}
    main = directory / "chat_template.jinja"
    if main.is_file():
        templates["default"] = _read_text(directory, main)
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(directory, path)
    if templates:
        return templates
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, Mapping):  # as a tokenizer has them in memory, and some write them
        given = [{"name": name, "template": text} for name, text in given.items()]
    for entry in given if isinstance(given, list) else []:
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("name"), str)
            or not isinstance(entry.get("template"), str)
        ):
            raise CorruptModel(
                f"chat_template in {directory / 'tokenizer_config.json'} holds several, and one "
                "is not an object with a name and a template"
            )
        templates[entry["name"]] = entry["template"]
    return templates
