"""Which tasks beside text a model has, by its config, its directory and the options.

In this order: options (runner, convert, pooler_config), the directory (modules.json), the
architecture. A plain generator embeds only if an option says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.base.notes import note
from quire.errors import CorruptModel, InvalidOption, UnsupportedModel
from quire.families.encoders.family import Dense, EncoderFamily, HeadPart
from quire.families.fields import Fields
from quire.options import Options
from quire.pooling.gguf_files import read_gguf_pooling
from quire.pooling.sentence_files import SentenceFiles, read_sentence_files
from quire.pooling.spec import (
    PLAIN_GENERATOR,
    Classifier,
    PoolerSpec,
    PoolingType,
    Task,
    TokenRows,
)
from quire.weights.source import ModelFiles

CLASSIFIES, LABELS_TOKENS = "ForSequenceClassification", "ForTokenClassification"
_EMBEDS = "this model gives embeddings. Classes need a model with a head for them."
_CLASSIFIES = "this model classifies. Use classify(), or score() where it has one label."
# Changes of logits that rows of the head alone do not have.
_OF_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
# Heads of BGE-M3 beside its model, and their results.
_PICKLED_HEADS = {"sparse_linear.pt": "weights of words", "colbert_linear.pt": "vectors of tokens"}
_POOLING_TYPES: Mapping[str, PoolingType] = {"CLS": "cls", "MEAN": "mean", "LAST": "last"}


def choose_pooler(
    files: ModelFiles, config: Mapping[str, Any], options: Options, encoder: EncoderFamily | None
) -> PoolerSpec:
    """The pooler of a model; one without tasks for a plain generator."""
    fields = Fields(config, "config.json")
    ending = _ending(fields)
    if options.runner == "generate" and encoder is not None:
        raise InvalidOption(
            "runner='generate': an encoder writes no text. Leave it out.",
            parameter="runner",
            value=options.runner,
        )
    sentence = None
    if options.runner != "generate":
        if files.kind == "hf":
            sentence = read_sentence_files(files.modules_path, files.path)
            for name in filter(lambda name: (files.path / name).exists(), _PICKLED_HEADS):
                note(f"{name} is a pickle and not read: no {_PICKLED_HEADS[name]} are made by it")
        else:
            sentence = read_gguf_pooling(files, encoder, options)
    rows = sentence.scored_by if sentence is not None else None
    if ending in (CLASSIFIES, LABELS_TOKENS) and options.convert != "embed":
        spec = _classifying(fields, encoder, sentence, per_token=ending == LABELS_TOKENS)
    elif rows is not None and options.convert != "embed":
        spec = _by_tokens(fields, rows, sentence)
    elif options.convert == "classify":
        raise InvalidOption(
            "convert='classify': config.json names no model with a head for classes "
            "(...ForSequenceClassification). Load one that has it.",
            parameter="convert",
            value=options.convert,
        )
    elif sentence is not None or encoder is not None or _is_asked(options):
        default: PoolingType = "last" if encoder is None else "cls"
        spec = _embedding(fields, sentence, default)
    else:
        return PLAIN_GENERATOR
    if sentence is not None:
        spec = replace(
            spec,
            prompts=sentence.prompts,
            default_prompt=sentence.default_prompt,
            chat=sentence.chat,
            lower_case=sentence.lower_case,
            max_len=sentence.max_len,
            pools_prompt=sentence.pools_prompt,
        )
    return _configured(spec, options)


def _ending(fields: Fields) -> str:
    named = fields.values.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    return next(
        (end for end in (CLASSIFIES, LABELS_TOKENS) if isinstance(first, str) and end in first), ""
    )


def _is_asked(options: Options) -> bool:
    embeds = "embed" in (options.convert, options.task) or options.task == "embedding"
    return embeds or options.runner == "pooling"


def _embedding(fields: Fields, sentence: SentenceFiles | None, default: PoolingType) -> PoolerSpec:
    dimensions = _dimensions(fields)
    both: tuple[Task, ...] = ("embed", "token_embed")
    if sentence is None:
        return PoolerSpec(both, (default,), dimensions=dimensions, why_not=_EMBEDS)
    # After several kinds of pooling, later modules do not fit the vector of a single token.
    tasks = both[not sentence.pooling : 1 if len(sentence.pooling) > 1 else 2]
    return PoolerSpec(
        tasks,
        sentence.pooling or (default,),
        sentence.normalise,
        sentence.projections,
        dimensions,
        cut_to=sentence.cut_to,
        why_not=_EMBEDS,
    )


def _dimensions(fields: Fields) -> tuple[int, ...] | None:
    """Sizes to which embeddings may be cut: a list, or any."""
    listed = fields.values.get("matryoshka_dimensions")
    if listed is None:
        return () if fields.flag("is_matryoshka", False) else None
    if not isinstance(listed, list) or not listed:
        raise fields.wrong("matryoshka_dimensions", "a list of whole numbers")
    return tuple(
        Fields({"matryoshka_dimensions": n}, fields.source).count("matryoshka_dimensions")
        for n in listed
    )


def _classifying(
    fields: Fields,
    encoder: EncoderFamily | None,
    sentence: SentenceFiles | None,
    *,
    per_token: bool,
) -> PoolerSpec:
    tokens = fields.values.get("classifier_from_token")
    if tokens is not None:
        return _by_tokens(fields, _token_rows(fields, tokens), sentence)
    pooling: PoolingType = "last" if encoder is None else "cls"
    count = _num_labels(fields)
    prefix = "model." if encoder is None else encoder.prefix
    # Of classes for tokens, those with their own code call it "classifier".
    parts: tuple[HeadPart, ...] = (Dense("score", also="classifier" if per_token else ""),)
    if encoder is not None:
        parts = encoder.classifier(fields, per_token)
        pooling = "cls" if per_token else _label_pooling(fields, encoder)
    pad = _pad(fields) if encoder is None and not per_token else None
    active = _activation(fields, count, sentence)
    classifier = Classifier(parts, count, active, pooling, prefix, pad)
    tasks: tuple[Task, ...] = ("token_classify",) if per_token else ("classify", "token_classify")
    return PoolerSpec(tasks, (pooling,), classifier=classifier, why_not=_CLASSIFIES)


def _pad(fields: Fields) -> int | None:
    """The token that a decoder's class in Transformers takes for padding: its labels are those of
    the last token that is another one, even if the tokenizer ends each text with this one."""
    found = fields.values.get(
        "pad_token_id", fields.inner("text_config").values.get("pad_token_id")
    )
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _label_pooling(fields: Fields, encoder: EncoderFamily) -> PoolingType:
    known = encoder.label_pooling
    kind = fields.word("classifier_pooling", next(iter(known)))
    if kind not in known:
        raise fields.unsupported(
            "classifier_pooling", f"{' or '.join(map(repr, known))} for {encoder.name}"
        )
    return known[kind]


def _by_tokens(fields: Fields, rows: TokenRows, sentence: SentenceFiles | None) -> PoolerSpec:
    """One label: a difference of two logits of the last token."""
    for key in _OF_LOGITS:
        if fields.values.get(key) not in (None, 1, 1.0):
            raise fields.unsupported(key, "null where labels are made of logits")
    classifier = Classifier(rows, 1, _activation(fields, 1, sentence), "last")
    tasks: tuple[Task, ...] = ("classify", "token_classify")
    return PoolerSpec(tasks, ("last",), classifier=classifier, why_not=_CLASSIFIES)


def _num_labels(fields: Fields) -> int:
    labels = fields.values.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    return fields.count("num_labels", 2)


def _token_rows(fields: Fields, tokens: Any) -> TokenRows:
    if (
        not isinstance(tokens, list)
        or len(tokens) != 2
        or not all(isinstance(token, str) for token in tokens)
    ):
        raise fields.wrong("classifier_from_token", 'two tokens, such as ["no", "yes"]')
    return TokenRows(*tokens)


def _activation(fields: Fields, num_labels: int, sentence: SentenceFiles | None) -> Any:
    """The activation, as in Transformers and cross-encoders: by the kind of problem, or as the
    files say."""
    named = sentence.activation if sentence is not None else None
    named = named or fields.inner("sentence_transformers").values.get("activation_fn")
    named = named or fields.values.get("sbert_ce_default_activation_function")
    if named is not None:
        word = str(named).rsplit(".", 1)[-1].lower()
        if word not in ("sigmoid", "identity", "softmax"):
            raise UnsupportedModel(
                f"{fields.source}: activation {str(named)[:80]!r} of the labels; quire has "
                "Sigmoid, Softmax and Identity"
            )
        return word
    problem = fields.word("problem_type", "")
    if problem == "regression":
        return "identity"
    if problem not in ("", "single_label_classification", "multi_label_classification"):
        raise CorruptModel(f"{fields.source}: problem_type {problem[:60]!r} is not known")
    return "sigmoid" if num_labels == 1 or problem == "multi_label_classification" else "softmax"


def _configured(spec: PoolerSpec, options: Options) -> PoolerSpec:
    """The spec, changed by pooler_config."""
    given = options.pooler_config or options.override_pooler_config or {}
    kind, active = given.get("pooling_type"), given.get("use_activation")
    classifier = spec.classifier
    if kind is not None:
        pooling = _POOLING_TYPES[kind]
        spec = replace(spec, pooling=(pooling,))
        classifier = classifier and replace(classifier, pooling=pooling, pad=None)
    if active is not None:
        spec = replace(spec, normalise=active)
        if classifier is not None and not active:
            classifier = replace(classifier, activation="identity")
    return replace(spec, classifier=classifier)
