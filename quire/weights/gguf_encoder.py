"""A GGUF file of an encoder: its metadata as a config.json, and its tensors by the names that model
directories use. No torch.

What the format does not contain is Transformers' default: exact gelu, and the length of the table
of positions. Files of BERT, RoBERTa, XLM-RoBERTa and DistilBERT are all called "bert": one without
token types is DistilBERT, and if positions begin after unused ones, the converter has removed
those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders import embeddinggemma
from quire.families.encoders.family import EncoderFamily
from quire.families.encoders.registry import encoder_family
from quire.families.fields import Fields
from quire.weights.formats import StoredTensor
from quire.weights.gguf_config import stored_dtype
from quire.weights.gguf_file import GgufFile
from quire.weights.gguf_metadata import plain_metadata, shortest
from quire.weights.gguf_windows import layer_types

RANK = 4  # the pooling_type of models that score pairs
# Metadata that are read, or without effect; any other must be zero or false.
_READ = frozenset(
    {
        *("context_length", "embedding_length", "block_count", "feed_forward_length"),
        *("vocab_size", "pooling_type", "tensor_data_layout", "classifier.output_labels"),
        *("attention.head_count", "attention.layer_norm_epsilon", "attention.causal"),
        *("attention.layer_norm_rms_epsilon", "rope.dimension_count"),
    }
)
# Encoders with the layers of a decoder: KV heads shared by heads, any head_dim, RMSNorm.
_AS_DECODERS = ("eurobert", embeddinggemma.GGUF)
_ALIBI = "max_alibi_bias"
_ROTARY = frozenset({"rope.freq_base", "rope.scaling.type"})
_OF_MODERN = frozenset(
    {
        *("rope.freq_base_swa", "attention.sliding_window", "attention.sliding_window_pattern"),
        "hidden_activation",
    }
)


def encoder_config(file: GgufFile) -> dict[str, Any]:
    """The config of a GGUF file; empty if it is no encoder."""
    arch = file.metadata.get("general.architecture")
    is_model = file.metadata.get("general.type", "model") == "model"
    if not isinstance(arch, str) or arch not in READERS or not is_model:
        return {}
    fields = Fields(plain_metadata(file.metadata), file.path.name)
    return {**_shared(file, fields, arch), **READERS[arch](file, fields)}


def _shared(file: GgufFile, fields: Fields, arch: str) -> dict[str, Any]:
    hidden, heads = (
        fields.count(f"{arch}.{key}") for key in ("embedding_length", "attention.head_count")
    )
    if fields.values.get(f"{arch}.attention.causal"):
        raise fields.unsupported(f"{arch}.attention.causal", "false in a file of an encoder")
    as_decoder = arch in _AS_DECODERS
    size = fields.count(f"{arch}.attention.key_length", hidden // heads)
    kv_heads = fields.count(f"{arch}.attention.head_count_kv", heads)
    for key, usual in (
        ("attention.key_length", size if as_decoder else hidden // heads),
        ("attention.value_length", size if as_decoder else hidden // heads),
        ("attention.head_count_kv", kv_heads if as_decoder else heads),
        ("rope.dimension_count", size),
    ):
        if fields.count(name := f"{arch}.{key}", usual) != usual:
            raise fields.unsupported(name, f"{usual} in a file of an encoder")
    eps = "layer_norm_rms_epsilon" if as_decoder else "layer_norm_epsilon"
    words = _tensor(file, "token_embd.weight")
    return {
        "vocab_size": words.shape[0],
        **dict.fromkeys(("hidden_size", "dim"), hidden),
        **dict.fromkeys(("num_attention_heads", "n_heads"), heads),
        **dict.fromkeys(
            ("intermediate_size", "hidden_dim"), fields.count(f"{arch}.feed_forward_length")
        ),
        **dict.fromkeys(("num_hidden_layers", "n_layers"), fields.count(f"{arch}.block_count")),
        **dict.fromkeys(
            ("layer_norm_eps", "norm_eps", "rms_norm_eps"),
            shortest(fields.positive(f"{arch}.attention.{eps}")),
        ),
        **({"head_dim": size, "num_key_value_heads": kv_heads} if as_decoder else {}),
        "dtype": stored_dtype(file),
    }


def _bert(file: GgufFile, fields: Fields) -> dict[str, Any]:
    _check_keys(fields, "bert", frozenset())
    stem = "Bert" if "token_types.weight" in file.tensors else "DistilBert"
    config: dict[str, Any] = {
        "max_position_embeddings": _tensor(file, "position_embd.weight").shape[0]
    }
    if stem == "Bert":
        config["type_vocab_size"] = _tensor(file, "token_types.weight").shape[0]
    if stem == "DistilBert" and fields.positive("bert.attention.layer_norm_epsilon") > 2e-12:
        raise fields.unsupported("bert.attention.layer_norm_epsilon", "1e-12 without token types")
    head = [name for name in ("cls.weight", "cls.output.weight") if name in file.tensors]
    if not head:
        return {**config, "architectures": [f"{stem}Model"], "model_type": stem.lower()}
    if stem == "Bert" and len(head) == 2:  # BERT's own head is a single part
        stem, config["pad_token_id"] = "Roberta", -1
    config["num_labels"] = _tensor(file, head[-1]).shape[0]
    architectures = [f"{stem}ForSequenceClassification"]
    return {**config, "architectures": architectures, "model_type": stem.lower()}


def _jina(file: GgufFile, fields: Fields) -> dict[str, Any]:
    arch = "jina-bert-v2"
    _check_keys(fields, arch, frozenset({f"attention.{_ALIBI}"}))
    if fields.positive(key := f"{arch}.attention.{_ALIBI}", 8.0) != 8.0:
        raise fields.unsupported(key, "8")
    return {
        "architectures": ["JinaBertModel"],
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "max_position_embeddings": fields.count(f"{arch}.context_length"),
        "type_vocab_size": _tensor(file, "token_types.weight").shape[0],
    }


def _nomic(file: GgufFile, fields: Fields) -> dict[str, Any]:
    _check_keys(fields, "nomic-bert", _ROTARY)
    types = file.tensors.get("token_types.weight")
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "max_position_embeddings": fields.count("nomic-bert.context_length"),
        "type_vocab_size": None if types is None else types.shape[0],
        "rope_parameters": {"rope_theta": _theta(fields, "nomic-bert.rope.freq_base")},
    }


def _modern(file: GgufFile, fields: Fields) -> dict[str, Any]:
    arch = "modern-bert"
    _check_keys(fields, arch, _ROTARY | _OF_MODERN)
    head = file.tensors.get("cls.output.weight")
    labels = {} if head is None else {"num_labels": head.shape[0]}
    ending = "Model" if head is None else "ForSequenceClassification"
    return {
        **labels,
        "architectures": [f"ModernBert{ending}"],
        "model_type": "modernbert",
        "hidden_activation": fields.word(f"{arch}.hidden_activation", "gelu"),
        "max_position_embeddings": fields.count(f"{arch}.context_length"),
        "local_attention": fields.count(f"{arch}.attention.sliding_window"),
        "global_attn_every_n_layers": fields.count(f"{arch}.attention.sliding_window_pattern", 3),
        "global_rope_theta": _theta(fields, f"{arch}.rope.freq_base"),
        "local_rope_theta": _theta(fields, f"{arch}.rope.freq_base_swa"),
        "norm_bias": "token_embd_norm.bias" in file.tensors,
        "attention_bias": "blk.0.attn_qkv.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _jina_v3(file: GgufFile, fields: Fields) -> dict[str, Any]:
    arch = "jina-bert-v3"
    _check_keys(fields, arch, _ROTARY)
    return {
        "architectures": ["JinaEmbeddingsV3Model"],
        "model_type": "jina_embeddings_v3",
        "max_position_embeddings": fields.count(f"{arch}.context_length"),
        "type_vocab_size": _tensor(file, "token_types.weight").shape[0],
        "rope_theta": _theta(fields, f"{arch}.rope.freq_base"),
    }


def _euro(file: GgufFile, fields: Fields) -> dict[str, Any]:
    _check_keys(fields, "eurobert", _ROTARY)
    return {
        "architectures": ["EuroBertModel"],
        "model_type": "eurobert",
        "max_position_embeddings": fields.count("eurobert.context_length"),
        "rope_theta": _theta(fields, "eurobert.rope.freq_base"),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _with_windows(file: GgufFile, fields: Fields) -> dict[str, Any]:
    arch = embeddinggemma.GGUF
    dense = {f"dense_{i}_feat_{way}" for i in (2, 3) for way in ("in", "out")}
    _check_keys(fields, arch, _ROTARY | _OF_MODERN | dense)
    layers = {"num_hidden_layers": fields.count(f"{arch}.block_count")}
    return {
        **embeddinggemma.GGUF_WORDS,
        "max_position_embeddings": fields.count(f"{arch}.context_length"),
        "query_pre_attn_scalar": fields.count(f"{arch}.attention.key_length"),
        "sliding_window": fields.count(f"{arch}.attention.sliding_window"),
        **layer_types(fields, layers),
        "rope_theta": _theta(fields, f"{arch}.rope.freq_base"),
        "rope_local_base_freq": shortest(fields.positive(f"{arch}.rope.freq_base_swa", 1e4)),
    }


READERS: Mapping[str, Callable[[GgufFile, Fields], dict[str, Any]]] = {
    "bert": _bert,
    "jina-bert-v2": _jina,
    "nomic-bert": _nomic,
    "modern-bert": _modern,
    "jina-bert-v3": _jina_v3,
    "eurobert": _euro,
    embeddinggemma.GGUF: _with_windows,
}


def _theta(fields: Fields, key: str) -> float:
    return shortest(fields.positive(key))


def _check_keys(fields: Fields, arch: str, more: frozenset[str]) -> None:
    for key, value in fields.values.items():
        name = key.removeprefix(f"{arch}.")
        known = name in _READ | more or name.startswith("attention.head_count_kv")
        if name == key or known or name in ("attention.key_length", "attention.value_length"):
            continue
        if value not in (0, "none"):
            raise UnsupportedModel(
                f"{fields.source}: {key} {str(value)[:40]} is a part of a model that quire does "
                "not know"
            )
    if fields.values.get(f"{arch}.rope.scaling.type", "none") != "none":
        raise fields.unsupported(f"{arch}.rope.scaling.type", "'none'")


def _tensor(file: GgufFile, name: str) -> StoredTensor:
    found = file.tensors.get(name)
    if found is None or len(found.shape) != 2:
        raise CorruptModel(f"{file.path.name}: no tensor {name} of two dimensions")
    return found


def encoder_tensors(file: GgufFile, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Every tensor, by the name that directories of its family use."""
    family = encoder_family(config)
    if family is None:
        raise CorruptModel(f"{file.path.name}: its config names no encoder")
    names = dict(_names(family, config))
    found = {}
    for name, tensor in file.tensors.items():
        base, _, kind = name.rpartition(".")
        theirs = names.get(base)
        if theirs is None and not name.startswith(("cls.", "dense_")):
            raise UnsupportedModel(
                f"{file.path.name}: tensor {name!r} is of a part that quire does not know"
            )
        parts = theirs or (base,)
        count = tensor.shape[0] // len(parts)
        for i, part in enumerate(parts):
            found[f"{part}.{kind}"] = tensor.rows(i * count, count) if len(parts) > 1 else tensor
    return found


def _names(
    family: EncoderFamily, config: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """GGUF's name of each tensor, and the family's names of its contents, from the top."""
    names = family.names
    around = {
        "token_embd": names.words,
        "position_embd": names.positions,
        "token_types": names.types,
        "token_embd_norm": names.embed_norm,
        "output_norm": names.norm,
    }
    yield from ((ours, (theirs,)) for ours, theirs in around.items() if theirs)
    norms = ("attn_norm", "ffn_norm") if names.norm else ("attn_output_norm", "layer_output_norm")
    gated = ("ffn_gate", "ffn_up") if len(names.up) > 1 else ("ffn_up",)
    more = {
        "post_attention_norm": names.attn_post_norm,
        "post_ffw_norm": names.mlp_post_norm,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
    }
    for i in range(config["num_hidden_layers"]):
        layer = names.layer.format(i)
        held = {
            "attn_qkv": names.qkv,
            "attn_output": (names.o,),
            **{ours: (theirs,) for ours, theirs in zip(gated, names.up, strict=True)},
            "ffn_down": (names.down,),
            norms[0]: (names.attn_norm,),
            norms[1]: (names.mlp_norm,),
            **{ours: (theirs,) for ours, theirs in more.items() if theirs},
        }
        if len(names.qkv) > 1:
            apart = zip(("attn_q", "attn_k", "attn_v"), names.qkv, strict=True)
            held |= {ours: (theirs,) for ours, theirs in apart}
        for ours, theirs in held.items():
            yield f"blk.{i}.{ours}", tuple(layer + name for name in theirs)
    # BERT's own head is not complete: converters leave out its first part.
    if "ForSequenceClassification" in config["architectures"][0] and family.name != "bert":
        first, *norm, last = family.classifier(Fields(config, "config.json"), False)
        yield from (("cls", (first.name,)), ("cls.output", (last.name,)))
        yield from (("cls.norm", (one.name,)) for one in norm)
