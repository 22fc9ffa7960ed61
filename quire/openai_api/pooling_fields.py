"""The fields of bodies that ask for numbers: embeddings, scores, classes."""

from __future__ import annotations

from quire.openai_api.field import Field, table

EMBEDDINGS, SCORE, CLASSIFY, POOLING = "/v1/embeddings", "/v1/score", "/classify", "/pooling"
# One request in the words of three services. Cohere's second version answers without documents.
RERANK, RERANK_SHORT, RERANK_2 = "/v1/rerank", "/rerank", "/v2/rerank"
RERANKS = (RERANK, RERANK_SHORT, RERANK_2)
POOLING_PATHS = (EMBEDDINGS, *RERANKS, SCORE, CLASSIFY, POOLING)
_TEXTS = (EMBEDDINGS, CLASSIFY, POOLING)
_PAIRS = (*RERANKS, SCORE)
_VECTORS = (EMBEDDINGS, POOLING)

POOLING_FIELDS: list[Field] = [
    *table(
        "honoured",
        POOLING_PATHS,
        ("model", "text", "One of the served names; any other is 404 `model_not_found`."),
        (
            "truncate_prompt_tokens",
            "a whole number",
            "Keep the beginning of a text; -1: what fits. Without it one too long is refused.",
        ),
        ("priority", "a whole number", "Only downwards: above 0 is the batch lane."),
        ("service_tier", "text", "`flex` puts the request into the batch lane; others are moot."),
        ("cache_salt", "text", "Mixed with the salt of the key."),
        (
            "use_activation",
            "true or false",
            "False: embeddings of any length, labels as logits.",
        ),
    ),
    *table(
        "honoured",
        _TEXTS,
        ("input", "text or a list", "Text, token ids, or a list of either; at most 2,048."),
        ("add_special_tokens", "true or false", "False: those of the text alone."),
    ),
    *table(
        "honoured",
        _VECTORS,
        ("encoding_format", "text", "`float`, or `base64` of float32 numbers."),
        ("dimensions", "a whole number", "Of a model that was made to be cut."),
        ("prompt_name", "text", "What texts begin with, by its name among the model's prompts."),
    ),
    *table(
        "honoured",
        (POOLING,),
        ("task", "text", "embed, classify, token_embed, token_classify; the model's first."),
    ),
    *table(
        "honoured",
        RERANKS,
        ("query", "text", ""),
        ("documents", "a list", "Texts, or objects with a `text`; at most 2,048."),
        ("top_n", "a whole number", "So many of the best."),
        (
            "return_documents",
            "true or false",
            "Their texts in the answer; true but for `/v2/rerank`.",
        ),
    ),
    *table(
        "honoured",
        (SCORE,),
        ("text_1", "text or a list", "Of a pooling model: one text, or as many as `text_2`."),
        ("text_2", "text or a list", "At most 2,048."),
        ("query", "text", "Of a generating model: what each item is read with."),
        ("items", "a list", "Texts; at most 1,024."),
        ("label_token_ids", "a list", "Tokens whose chances to come next are the scores."),
        ("apply_softmax", "true or false", "Chances among the labels alone."),
        ("item_first", "true or false", "The item before the query."),
    ),
    *table("moot", POOLING_PATHS, ("user", "text", "Accounts are the key's.")),
    *table(
        "refused",
        _TEXTS,
        ("messages", "a list", "Write them out, and send the text as input."),
        ("chat_template", "text", "Write the text out, and send it as input."),
    ),
    *table(
        "refused",
        RERANKS,
        ("max_tokens_per_doc", "a whole number", "Use truncate_prompt_tokens."),
        ("max_chunks_per_doc", "a whole number", "Use truncate_prompt_tokens."),
        ("rank_fields", "a list", "Send texts."),
    ),
    *table("refused", _PAIRS, ("chat_template", "text", "The model reads pairs as it does.")),
]
