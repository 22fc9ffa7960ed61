"""The tokenizer of a GGUF file, built from its metadata.

Four kinds are built. "gpt2" is byte-level BPE: the file has the vocabulary and the merges, and
names the rule by which text is cut before merging (`tokenizer.ggml.pre`). "llama" and "t5" are
SentencePiece's BPE and unigram: the file has pieces with scores, from which merges follow, or which
add up to that of a text. "bert" is WordPiece (gguf_wordpiece.py). A rule that is not known is
refused, because a near guess gives near-right tokens and nobody notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quire.base.boundary import refusing
from quire.errors import CorruptModel, UnsupportedModel
from quire.inputs.gguf_cuts import CUTS, Cut
from quire.inputs.gguf_wordpiece import USUAL_NAMES, as_written, word_pieces
from quire.inputs.sentencepiece_file import NORMAL, merges_by_score
from quire.inputs.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_NEVER = -1e6  # a score that no text is worth
_NO_TOKEN = 2**32 - 1  # how some writers say "none"
# Tokens that end a turn in the chat formats of the supported families.
_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"})
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # so spelled in the format
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


class _Vocabulary(NamedTuple):
    tokens: list[str]
    types: list[int]


class _Ends(NamedTuple):
    """Which ends texts get where the file does not say, and how many ends of text stand between
    the two of a pair."""

    bos: bool = False
    eos: bool = False
    between: int = 0


def load_gguf_tokenizer(metadata: Mapping[str, Any], *, prefix_once: bool = False) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes. `prefix_once`: where a space comes
    before the first word, it does so in a text, and not behind each special token in it."""
    with refusing(lambda why: CorruptModel(f"the GGUF file's tokenizer cannot be built: {why}")):
        return _built(metadata, prefix_once)


def _built(metadata: Mapping[str, Any], prefix_once: bool) -> Tokenizer:
    kind = _get(metadata, "model", str)
    if kind not in ("gpt2", "llama", "t5", "bert"):
        raise UnsupportedModel(
            f"the GGUF file has a tokenizer of kind {kind!r}; quire builds 'gpt2', 'llama', 't5' "
            "and 'bert', for others pass tokenizer= with a directory that has a tokenizer.json"
        )
    vocabulary = _vocabulary(metadata, kind)
    special = _special(metadata, vocabulary, kind)
    ends = _Ends(bos=kind == "llama", eos=kind == "t5")
    if kind == "gpt2":
        cut = _cut(metadata)
        backend, ends = _byte_bpe(metadata, vocabulary, cut), _Ends(bos=cut.bos)
    elif kind == "bert":
        cleaning = (_said(metadata, f"normalizer.{one}") for one in ("lowercase", "strip_accents"))
        backend = word_pieces(vocabulary.tokens, special, *cleaning)
    else:
        backend = _sentencepiece(metadata, vocabulary, kind, prefix_once)
    if _is_encoder(metadata):
        ends = _Ends(bos=True, eos=True, between=1 if kind == "bert" else _marks_between(metadata))
    _add_tokens(backend, vocabulary, frozenset(special.values()))
    _set_ends(backend, metadata, special, ends)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=_chat_templates(metadata),
        eos_ids=_eos_ids(metadata, vocabulary),
    )


def _get(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, kind):
        found = "nothing" if value is None else type(value).__name__
        raise CorruptModel(
            f"the GGUF file's tokenizer.ggml.{key} should be a {kind.__name__}, found {found}"
        )
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        raise _wrong(metadata, key, "an array of numbers")
    if len(values) != count:
        raise CorruptModel(
            f"the GGUF file has {count} tokens, but {len(values)} entries in tokenizer.ggml.{key}"
        )
    return values


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        raise CorruptModel(f"the GGUF file has no tokenizer.ggml.{key}")
    if not isinstance(values, list) or not all(type(v) is str for v in values):
        raise _wrong(metadata, key, "an array of texts")
    return list(values)


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise _wrong(metadata, key, "true or false")
    return value


def _wrong(metadata: Mapping[str, Any], key: str, rule: str) -> CorruptModel:
    value = metadata[f"tokenizer.ggml.{key}"]
    shown = repr(value)[:60] if isinstance(value, bool | int | float | str) else "another array"
    return CorruptModel(f"the GGUF file's tokenizer.ggml.{key} must be {rule}; it is {shown}")


def _special(metadata: Mapping[str, Any], vocabulary: _Vocabulary, kind: str) -> dict[str, str]:
    """The tokens that have a name of their own, by it."""
    special = {}
    for name, key in _NAMED.items():
        if (token_id := _token_id(metadata, key, vocabulary)) is not None:
            special[name] = vocabulary.tokens[token_id]
    if kind == "bert":
        usual = {name: token for name, token in USUAL_NAMES.items() if token in vocabulary.tokens}
        special = {**usual, **special}
    # Encoders have these names for the ends of a text, and early files the others.
    for name, other in (("bos_token", "cls_token"), ("eos_token", "sep_token")):
        if _is_encoder(metadata) and other in special:
            special[name] = special[other]
    return special


def _is_encoder(metadata: Mapping[str, Any]) -> bool:
    return metadata.get(f"{metadata.get('general.architecture')}.attention.causal") is False


def _marks_between(metadata: Mapping[str, Any]) -> int:
    """RoBERTa and XLM-RoBERTa, which are called as BERT is, have two."""
    return 2 if metadata.get("general.architecture") == "bert" else 1


def _said(metadata: Mapping[str, Any], key: str) -> bool | None:
    return None if f"tokenizer.ggml.{key}" not in metadata else _flag(metadata, key, False)


def _vocabulary(metadata: Mapping[str, Any], model: str) -> _Vocabulary:
    tokens = _strings(metadata, "tokens")
    types = _numbers(metadata, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    if model == "bert":
        tokens = as_written(tokens, [kind == _CONTROL for kind in types])
    for index, kind in enumerate(types):
        if kind == _USER_DEFINED:  # matched in the text as it is written, before "▁" stands for " "
            tokens[index] = tokens[index].replace("▁", " ")
    if not tokens or len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if token in seen:
                raise CorruptModel(
                    f"the GGUF file's tokens {seen[token]} and {index} are both {token!r}"
                )
            seen[token] = index
        raise CorruptModel("the GGUF file's vocabulary is empty")
    return _Vocabulary(tokens, types)


def _token_id(metadata: Mapping[str, Any], key: str, vocabulary: _Vocabulary) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _wrong(metadata, key, "a token id")
    if value != _NO_TOKEN and not 0 <= value < len(vocabulary.tokens):
        raise CorruptModel(
            f"the GGUF file's tokenizer.ggml.{key} is {value}, its vocabulary has "
            f"{len(vocabulary.tokens)} tokens"
        )
    return None if value == _NO_TOKEN else int(value)


def _cut(metadata: Mapping[str, Any]) -> Cut:
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is not None and not isinstance(pre, str):
        raise _wrong(metadata, "pre", "a text")
    if pre not in CUTS:
        named = "does not name the rule" if pre is None else f"names the rule {pre!r}"
        raise UnsupportedModel(
            f"the GGUF file {named} by which its tokenizer cuts text (tokenizer.ggml.pre); quire "
            f"knows {', '.join(sorted(CUTS))}. Pass tokenizer= with the directory of the original "
            "model, or a GGUF file made by a newer converter"
        )
    return CUTS[pre]


def _byte_bpe(metadata: Mapping[str, Any], vocabulary: _Vocabulary, cut: Cut) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    merges = [tuple(merge.split(" ")) for merge in _strings(metadata, "merges")]
    if not all(len(merge) == 2 for merge in merges):
        raise CorruptModel("the GGUF file's tokenizer.ggml.merges has a merge that is no pair")
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    backend = Backend(_bpe(models.BPE, ids, merges, ignore_merges=cut.whole_words))
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(cut)
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(kind: Any, ids: dict[str, int], merges: Sequence[Any], **options: Any) -> Any:
    with refusing(lambda why: CorruptModel(f"the GGUF file's merges do not fit: {why}")):
        return kind(ids, merges, **options)


def _pre_tokenizer(cut: Cut) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    splits = [Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, kind: str, prefix_once: bool
) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, normalizers
    from tokenizers.pre_tokenizers import Metaspace

    scores = _numbers(metadata, "scores", len(vocabulary.tokens))
    if scores is None:
        raise CorruptModel("the GGUF file has no tokenizer.ggml.scores, which order its merges")
    unknown = _token_id(metadata, "unknown_token_id", vocabulary)
    backend = Backend(_pieces(vocabulary, scores, unknown, kind))
    prefix = _flag(metadata, "add_space_prefix", True)
    steps = _cleaning(metadata, kind)
    if prefix and prefix_once:
        backend.pre_tokenizer = Metaspace("▁", "first", split=False)
    else:
        steps += [normalizers.Prepend("▁")] if prefix else []
        steps.append(normalizers.Replace(" ", "▁"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return backend


def _pieces(
    vocabulary: _Vocabulary, scores: Sequence[float], unknown: int | None, kind: str
) -> Any:
    from tokenizers import models

    if kind == "t5":
        # Pieces that stand for something else than their text must not be found in one.
        vocab = [
            (token, float(score) if one in (NORMAL, _USER_DEFINED) else _NEVER)
            for token, one, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
        ]
        return models.Unigram(vocab, unknown, byte_fallback=_BYTE in vocabulary.types)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    return _bpe(
        models.BPE,
        ids,
        merges_by_score(vocabulary.tokens, vocabulary.types, scores, ids),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )


def _cleaning(metadata: Mapping[str, Any], kind: str) -> list[Normalizer]:
    """What is done to a text first: characters by a table, runs of spaces made one."""
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = []
    table = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if table is not None and len(table):
        steps.append(normalizers.Precompiled(bytes(bytearray(table))))
    if _is_encoder(metadata):  # XLM-RoBERTa cuts at any space, whatever a converter wrote of it
        steps.append(normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""))
        steps.append(normalizers.Replace(Regex(r"\s+"), " "))
    elif _flag(metadata, "remove_extra_whitespaces", kind == "t5"):
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    return steps


def _add_tokens(backend: Backend, vocabulary: _Vocabulary, named: frozenset[str]) -> None:
    """Tokens that are found in a text before it is cut. Those with a name of their own (the
    beginning, the unknown) are special whatever type the file gives them."""
    from tokenizers import AddedToken

    specials, others = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if token and (kind == _CONTROL or token in named):
            specials.append(AddedToken(token, normalized=False, special=True))
        elif token and kind == _USER_DEFINED:
            others.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(specials)
    backend.add_tokens(others)


def _set_ends(
    backend: Backend, metadata: Mapping[str, Any], special: Mapping[str, str], ends: _Ends
) -> None:
    from tokenizers.processors import TemplateProcessing

    def end(flag: str, name: str, default: bool) -> list[str]:
        return [special[name]] if _flag(metadata, flag, default) and name in special else []

    bos = end("add_bos_token", "bos_token", ends.bos)
    eos = end("add_eos_token", "eos_token", ends.eos)
    if bos or eos:
        backend.post_processor = TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=[*bos, "$A", *eos * ends.between, "$B:1", *(f"{token}:1" for token in eos)],
            special_tokens=[(t, backend.token_to_id(t)) for t in dict.fromkeys(bos + eos)],
        )


def _eos_ids(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[int, ...]:
    """Every id that ends an answer: end of text first, then ends of a turn."""
    named: Iterable[int | None] = (
        _token_id(metadata, key, vocabulary)
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
    )
    turns = (
        index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if token in _TURN_ENDS and kind in (_CONTROL, _USER_DEFINED)
    )
    return tuple(dict.fromkeys(i for i in (*named, *turns) if i is not None))


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The default template and any named ones (tokenizer.chat_template.<name>)."""
    start = "tokenizer.chat_template."
    templates = {"default": metadata.get("tokenizer.chat_template")}
    templates |= {
        key.removeprefix(start): metadata[key] for key in metadata if key.startswith(start)
    }
    for name, text in templates.items():
        if text is not None and not isinstance(text, str):
            raise CorruptModel(f"the GGUF file's chat template {name!r} is no text")
    return {name: text for name, text in templates.items() if text is not None}
