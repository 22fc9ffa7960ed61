"""The tokenizer of a GGUF file, built from its metadata.

"gpt2" is byte-level BPE: the file has the vocabulary and the merges, and names the rule by which
text is cut before merging (`tokenizer.ggml.pre`). "llama" and "t5" are SentencePiece's BPE and
unigram: the file has pieces with scores, which give the merges, or are added up for a text. Kinds
that a family names (Family.gguf_merged) are SentencePiece's BPE, too, with merges in the file.
"bert" is WordPiece (gguf_wordpiece.py). An unknown rule is refused: a similar one would give tokens
that are nearly right, and nobody would notice the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.base.boundary import refusing
from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders import embeddinggemma
from quire.families.registry import FAMILIES
from quire.inputs.bpe import bpe_model, byte_level_bpe, merges_by_score
from quire.inputs.gguf_cuts import CUTS, Cut
from quire.inputs.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Vocabulary,
    checked,
    flag,
    numbers,
    read_vocabulary,
    strings,
    token_id,
    wrong,
)
from quire.inputs.gguf_wordpiece import USUAL_NAMES, word_pieces
from quire.inputs.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Normalizer

_NEVER = -1e6  # a score so low that the piece is never used
# Tokens that end a turn in the chat formats of the supported families.
_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|tool_response>"}
)
_MERGED = frozenset(family.gguf_merged for family in FAMILIES if family.gguf_merged)
# Encoders whose texts get only the end tokens that the file asks for.
_ENDS_AS_DECODERS = ("eurobert", embeddinggemma.GGUF)
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # so spelled in the format
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


class _Ends(NamedTuple):
    """Whether texts get tokens at their beginning and end if the file does not say, and the number
    of end-of-text tokens between the two texts of a pair."""

    bos: bool = False
    eos: bool = False
    between: int = 0


def load_gguf_tokenizer(metadata: Mapping[str, Any], *, prefix_once: bool = False) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes. `prefix_once`: where a space comes
    before the first word, it does so in a text, and not behind each special token in it."""
    with refusing(lambda why: CorruptModel(f"the GGUF file's tokenizer cannot be built: {why}")):
        return _built(metadata, prefix_once)


def _built(metadata: Mapping[str, Any], prefix_once: bool) -> Tokenizer:
    kind = checked(metadata, "model", str)
    if kind not in (known := ("gpt2", "llama", "t5", "bert", *sorted(_MERGED))):
        raise UnsupportedModel(
            f"the GGUF file has a tokenizer of kind {kind!r}; quire builds "
            f"{', '.join(map(repr, known))}, for others pass tokenizer= with a directory that has "
            "a tokenizer.json"
        )
    vocabulary = read_vocabulary(metadata, kind)
    special = _special(metadata, vocabulary, kind)
    ends = _Ends(bos=kind == "llama" or kind in _MERGED, eos=kind == "t5")
    if kind == "gpt2":
        cut = _cut(metadata)
        backend, ends = _byte_bpe(metadata, vocabulary, cut), _Ends(bos=cut.bos)
    elif kind == "bert":
        lower, strip = (
            flag(metadata, f"normalizer.{one}", None) for one in ("lowercase", "strip_accents")
        )
        backend = word_pieces(vocabulary.tokens, special, lower, strip)
    else:
        backend = _sentencepiece(metadata, vocabulary, kind, prefix_once)
    if _is_encoder(metadata) and metadata["general.architecture"] not in _ENDS_AS_DECODERS:
        ends = _Ends(bos=True, eos=True, between=1 if kind == "bert" else _marks_between(metadata))
    _add_tokens(backend, vocabulary, frozenset(special.values()))
    _set_ends(backend, metadata, special, ends)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=_chat_templates(metadata),
        eos_ids=_eos_ids(metadata, vocabulary),
    )


def _special(metadata: Mapping[str, Any], vocabulary: Vocabulary, kind: str) -> dict[str, str]:
    """The tokens that have a name of their own, by it."""
    special = {}
    for name, key in _NAMED.items():
        if (number := token_id(metadata, key, vocabulary)) is not None:
            special[name] = vocabulary.tokens[number]
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
    """The end tokens between two texts: two for (XLM-)RoBERTa, which is also named bert."""
    return 2 if metadata.get("general.architecture") in ("bert", "jina-bert-v3") else 1


def _cut(metadata: Mapping[str, Any]) -> Cut:
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is not None and not isinstance(pre, str):
        raise wrong(metadata, "pre", "a text")
    if pre not in CUTS:
        named = "does not name the rule" if pre is None else f"names the rule {pre!r}"
        raise UnsupportedModel(
            f"the GGUF file {named} by which its tokenizer cuts text (tokenizer.ggml.pre); quire "
            f"knows {', '.join(sorted(CUTS))}. Pass tokenizer= with the directory of the original "
            "model, or a GGUF file made by a newer converter"
        )
    return CUTS[pre]


def _byte_bpe(metadata: Mapping[str, Any], vocabulary: Vocabulary, cut: Cut) -> Backend:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    return byte_level_bpe(ids, _merges(metadata), cut)


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, ...]]:
    merges = [tuple(merge.split(" ")) for merge in strings(metadata, "merges")]
    if not all(len(merge) == 2 for merge in merges):
        raise CorruptModel("the GGUF file's tokenizer.ggml.merges has a merge that is no pair")
    return merges


def _sentencepiece(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, kind: str, prefix_once: bool
) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, normalizers
    from tokenizers.pre_tokenizers import Metaspace

    backend = Backend(_pieces(metadata, vocabulary, kind))
    prefix = flag(metadata, "add_space_prefix", True)
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


def _pieces(metadata: Mapping[str, Any], vocabulary: Vocabulary, kind: str) -> Any:
    from tokenizers import models

    unknown = token_id(metadata, "unknown_token_id", vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if kind in _MERGED:
        return _piece_bpe(ids, _merges(metadata), vocabulary, unknown)
    scores = numbers(metadata, "scores", len(vocabulary.tokens))
    if scores is None:
        raise CorruptModel("the GGUF file has no tokenizer.ggml.scores, which order its merges")
    listed = zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
    if kind == "t5":
        # Pieces that stand for something else than their text must not be found in one.
        vocab = [
            (token, float(score) if one in (NORMAL, USER_DEFINED) else _NEVER)
            for token, one, score in listed
        ]
        return models.Unigram(vocab, unknown, byte_fallback=BYTE in vocabulary.types)
    scored = {token: score for token, one, score in listed if one == NORMAL}
    return _piece_bpe(ids, merges_by_score(scored, ids), vocabulary, unknown)


def _piece_bpe(
    ids: dict[str, int], merges: Any, vocabulary: Vocabulary, unknown: int | None
) -> Any:
    return bpe_model(
        ids,
        merges,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )


def _cleaning(metadata: Mapping[str, Any], kind: str) -> list[Normalizer]:
    """The normalizers of a text: a table of characters, and runs of spaces made one space."""
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = []
    table = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if table is not None and len(table):
        steps.append(normalizers.Precompiled(bytes(bytearray(table))))
    if _is_encoder(metadata):  # XLM-RoBERTa cuts at any space, whatever a converter wrote of it
        steps.append(normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""))
        steps.append(normalizers.Replace(Regex(r"\s+"), " "))
    elif flag(metadata, "remove_extra_whitespaces", kind == "t5"):
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    return steps


def _add_tokens(backend: Backend, vocabulary: Vocabulary, named: frozenset[str]) -> None:
    """Tokens that are found in a text before it is cut. Those with a name of their own (the
    beginning, the unknown) are special whatever type the file gives them."""
    from tokenizers import AddedToken

    specials, others = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if token and (kind == CONTROL or token in named):
            specials.append(AddedToken(token, normalized=False, special=True))
        elif token and kind == USER_DEFINED:
            others.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(specials)
    backend.add_tokens(others)


def _set_ends(
    backend: Backend, metadata: Mapping[str, Any], special: Mapping[str, str], ends: _Ends
) -> None:
    from tokenizers.processors import TemplateProcessing

    def end(key: str, name: str, default: bool) -> list[str]:
        return [special[name]] if flag(metadata, key, default) and name in special else []

    bos = end("add_bos_token", "bos_token", ends.bos)
    eos = end("add_eos_token", "eos_token", ends.eos)
    if bos or eos:
        backend.post_processor = TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=[*bos, "$A", *eos * ends.between, "$B:1", *(f"{token}:1" for token in eos)],
            special_tokens=[(t, backend.token_to_id(t)) for t in dict.fromkeys(bos + eos)],
        )


def _eos_ids(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[int, ...]:
    """Every id that ends an answer: end of text first, then ends of a turn."""
    named: Iterable[int | None] = (
        token_id(metadata, key, vocabulary)
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
    )
    turns = (
        index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if token in _TURN_ENDS and kind in (CONTROL, USER_DEFINED)
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
