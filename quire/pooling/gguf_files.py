"""Pooling in a GGUF file, and how it scores pairs of texts. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quire.base.notes import note
from quire.errors import UnsupportedModel
from quire.families.encoders import embeddinggemma
from quire.families.encoders.family import Dense, EncoderFamily
from quire.options import Options
from quire.pooling.sentence_files import SentenceFiles
from quire.pooling.spec import PoolingType, Projection, TokenRows
from quire.weights.gguf_encoder import RANK
from quire.weights.source import ModelFiles

_POOLINGS: Mapping[Any, PoolingType] = {1: "mean", 2: "cls", 3: "last"}
# For a decoder that scores pairs: labels are rows of its own head, in this order.
_LABELS, _ROWS = ["yes", "no"], TokenRows(no=1, yes=0)
_DENSE = ["dense_2.weight", "dense_3.weight"]
_PLACE = re.compile(r"\{(query|document)\}")


def read_gguf_pooling(
    files: ModelFiles, encoder: EncoderFamily | None, options: Options
) -> SentenceFiles | None:
    """The pooling; None if the file has none."""
    metadata = files.gguf.metadata
    arch = metadata.get("general.architecture")
    kind = metadata.get(f"{arch}.pooling_type", 0)
    if encoder is not None and encoder.name == "modernbert":
        _check_head(files, options)
    if kind == 0 or (kind == RANK and options.convert == "embed"):
        return None
    if kind == RANK and encoder is not None:
        if str(files.config["architectures"][0]).endswith("ForSequenceClassification"):
            return None  # its head determines the rest
        raise UnsupportedModel(
            f"{files.path.name}: {arch}.pooling_type 4 (scores), and no head that quire reads. "
            "convert='embed' makes it give embeddings"
        )
    if kind == RANK:
        labels = metadata.get(f"{arch}.classifier.output_labels")
        if labels != _LABELS or "cls.output.weight" not in files.gguf.tensors:
            raise UnsupportedModel(
                f"{files.path.name}: {arch}.pooling_type 4 (scores) with the labels "
                f"{str(labels)[:80]}; of decoders quire has those with {_LABELS} and a tensor "
                "cls.output.weight. runner='generate' leaves it out"
            )
        pairs = metadata.get("tokenizer.chat_template.rerank")
        chat: dict[str, Any] | None = None
        if isinstance(pairs, str):
            chat = {"add_generation_prompt": False, "chat_template": _as_template(pairs)}
        return SentenceFiles(("last",), normalise=True, scored_by=_ROWS, chat=chat)
    if kind not in _POOLINGS:
        raise UnsupportedModel(
            f"{files.path.name}: {arch}.pooling_type {str(kind)[:40]}; quire has 1 (mean), 2 (cls) "
            "and 3 (last). runner='generate' leaves it out"
        )
    projections = tuple(_projections(files))
    if arch == embeddinggemma.GGUF and not projections:
        note(
            f"{files.path.name} has no dense_2 and dense_3, which EmbeddingGemma has behind its "
            "layers: vectors are the mean of its states, not those of its directory"
        )
    return SentenceFiles((_POOLINGS[kind],), normalise=True, projections=projections)


def _projections(files: ModelFiles) -> Iterator[Projection]:
    """Projections after the mean. A single one belongs to something else."""
    tensors = files.gguf.tensors
    names = [name for name in tensors if name.startswith("dense_")]
    if names and sorted(names) != _DENSE:
        raise UnsupportedModel(
            f"{files.path.name}: tensors {', '.join(names)[:200]}; quire has {' and '.join(_DENSE)}"
        )
    for name in sorted(names):
        rows, columns = tensors[name].shape
        yield Projection("", Dense(name.removesuffix(".weight")), columns, rows, bias=False)


def _check_head(files: ModelFiles, options: Options) -> None:
    """Refuse a ModernBERT head whose pooling the caller does not name: there are two kinds, and the
    converter to GGUF does not write which."""
    given = options.pooler_config or options.override_pooler_config or {}
    has_head = "cls.output.weight" in files.gguf.tensors and options.convert != "embed"
    if has_head and given.get("pooling_type") is None:
        raise UnsupportedModel(
            f"{files.path.name}: GGUF does not say whether the head of a ModernBERT reads the "
            "first token or the mean of all. Say it with pooler_config={'pooling_type': 'CLS'} or "
            "'MEAN' (classifier_pooling in the config.json it was made of)"
        )


def _as_template(pairs: str) -> str:
    """A text with {query} and {document} as a template for messages of two roles."""
    pieces = _PLACE.split(pairs)  # every second piece is a role
    pieces[::2] = [repr(text) for text in pieces[::2]]
    pieces[1::2] = [
        f"(messages | selectattr('role', 'equalto', '{r}') | first).content" for r in pieces[1::2]
    ]
    return "".join(f"{{{{ {piece} }}}}" for piece in pieces)
