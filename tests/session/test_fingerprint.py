"""What a model's fingerprint is made of."""

from __future__ import annotations

from dataclasses import fields

from quire.session.fingerprint import FACTS, RARE
from quire.spec import ModelSpec

# Sizes and parts show in the weights; lengths, ids and the stored type change no verdict.
SEEN_IN_WEIGHTS = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_kv_heads"),
    *("qkv_bias", "qk_norm", "o_bias", "mlp_bias", "tied_embeddings"),
}
NOT_COMPUTED_WITH = {"max_model_len", "eos_ids", "bos_id", "dtype"}


def test_every_fact_of_a_spec_is_in_it_or_seen_otherwise() -> None:
    known = {*FACTS, *RARE, *SEEN_IN_WEIGHTS, *NOT_COMPUTED_WITH}
    assert {field.name for field in fields(ModelSpec)} == known
