"""The table of fields: every one that a body may have is honoured, moot or refused.

docs/server.md is rendered from it, and a test compares the two. A field that is not here is refused
with the name of the nearest one: if a misspelt constraint were ignored, the text would not follow
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.openai_api.field import Body, body_of, table

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, SCORE, CLASSIFY, POOLING = "/v1/embeddings", "/v1/score", "/classify", "/pooling"
# The same request in the forms of three services. Cohere's second version returns no documents.
RERANK, RERANK_SHORT, RERANK_2 = "/v1/rerank", "/rerank", "/v2/rerank"
RERANKS = (RERANK, RERANK_SHORT, RERANK_2)
# Anthropic's form of a chat.
MESSAGES = "/v1/messages"
POOLING_PATHS = (EMBEDDINGS, *RERANKS, SCORE, CLASSIFY, POOLING)

_BOTH, _CHAT, _TEXT, _RESPONSES = (CHAT, COMPLETIONS), (CHAT,), (COMPLETIONS,), (RESPONSES,)
_OPENAI = (*_BOTH, RESPONSES)
_WRITING = (*_OPENAI, MESSAGES)
_ALL = (*_WRITING, *POOLING_PATHS)
_INPUTS, _PAIRS, _VECTORS = (
    (EMBEDDINGS, CLASSIFY, POOLING),
    (*RERANKS, SCORE),
    (EMBEDDINGS, POOLING),
)


_FIELDS = [
    *table(
        "honoured",
        _ALL,
        ("model", "text", "One of the served names; any other is 404 `model_not_found`."),
        ("service_tier", "text", "`flex` puts the request into the batch lane; others are moot."),
        ("priority", "a whole number", "Only downwards: above 0 is the batch lane."),
        ("cache_salt", "text", "Mixed with the salt of the key."),
    ),
    *table(
        "honoured",
        _WRITING,
        ("temperature", "a number", "0 is greedy."),
        ("top_p", "a number", "0: the likeliest token alone."),
        ("top_k", "a whole number", ""),
        ("min_p", "a number", ""),
        ("repetition_penalty", "a number", ""),
        ("seed", "a whole number", "The same seed and prompt give the same text."),
        ("chat_template_kwargs", "an object", "Variables for the chat template."),
        ("truncate_prompt_tokens", "a whole number", "Keep the prompt's end; -1: what fits."),
    ),
    *table("honoured", _BOTH, ("stream", "true or false", "Events, ended by `[DONE]`.")),
    *table(
        "honoured",
        (RESPONSES, MESSAGES),
        ("stream", "true or false", "Events with their names, as OpenAI and Anthropic have them."),
    ),
    *table(
        "honoured",
        _BOTH,
        ("max_tokens", "a whole number", "Null: the room left in a chat, 16 in a completion."),
        ("stream_options", "an object", "`include_usage`, `continuous_usage_stats`."),
        ("n", "a whole number", "At most 128; times the prompts at most 1,024."),
        ("stop", "text or a list", "At most 64, of 65,536 characters."),
        ("presence_penalty", "a number", ""),
        ("frequency_penalty", "a number", ""),
        ("logit_bias", "an object", "Token ids to -100 .. 100; at most 1,024."),
        (
            "response_format",
            "an object",
            "Always enforced, `strict` or not, behind the thoughts of a model that thinks; beside "
            "tools an answer is in it, or is calls. Objects have the properties that the schema "
            "names and no others, unless it says `additionalProperties`; so have the arguments of "
            "forced calls.",
        ),
        (
            "structured_outputs",
            "an object",
            "One of json, regex, choice, grammar, json_object; choices of more than 4,096 "
            "characters in all are drawn token by token.",
        ),
        ("guided_json", "anything", "The older form of structured_outputs."),
        ("guided_regex", "text", "The same."),
        ("guided_choice", "a list", "The same; at most 16,384."),
        ("guided_grammar", "text", "The same."),
        ("min_tokens", "a whole number", ""),
        ("thinking_token_budget", "a whole number", "Tokens of thoughts, before they are closed."),
        ("ignore_eos", "true or false", ""),
        ("stop_token_ids", "a list", "At most 1,024."),
        ("bad_words", "a list", "At most 1,024, of 65,536 characters."),
        ("allowed_token_ids", "a list", "At most 262,144."),
        ("prompt_logprobs", "a whole number", "Not in a stream."),
        ("skip_special_tokens", "true or false", ""),
        ("spaces_between_special_tokens", "true or false", ""),
        ("include_stop_str_in_output", "true or false", ""),
        (
            "add_special_tokens",
            "true or false",
            "Of a completion; a chat's template has its own.",
        ),
        ("return_token_ids", "true or false", "`token_ids` and `prompt_token_ids` in the answer."),
        ("use_beam_search", "true or false", "The best `n` of a search with `n` beams; no stream."),
        ("length_penalty", "a number", "Of a beam search: above 1 favours long answers."),
    ),
    *table(
        "honoured",
        _CHAT,
        (
            "messages",
            "a list",
            "Text, or parts: text, images, sounds, as the model takes them; developer is system.",
        ),
        ("max_completion_tokens", "a whole number", "Wins over max_tokens."),
        ("logprobs", "true or false", ""),
        ("top_logprobs", "a whole number", "At most 20, with logprobs."),
        ("tools", "a list", "Functions; as text where the chat template reads none."),
        ("tool_choice", "text or an object", "required, named and allowed_tools by a grammar."),
        ("parallel_tool_calls", "true or false", "False: at most one call."),
        ("reasoning_effort", "text", "A variable for the template; none also turns thinking off."),
        ("documents", "a list", "For templates that read them."),
        ("add_generation_prompt", "true or false", ""),
        ("continue_final_message", "true or false", ""),
        ("include_reasoning", "true or false", "False leaves the reasoning out."),
        required=("messages",),
    ),
    *table(
        "honoured",
        _TEXT,
        ("prompt", "text or a list", "Text, token ids, or a list of either."),
        ("logprobs", "true, false or a whole number", "At most 20."),
        ("echo", "true or false", "The prompt before the answer, scored if logprobs are."),
        ("best_of", "a whole number", "As many as n: all that are written are answered."),
        required=("prompt",),
    ),
    *table(
        "honoured",
        _RESPONSES,
        ("input", "text or a list", "Text, or messages as a chat has them."),
        ("instructions", "text", "A system message before the input."),
        ("max_output_tokens", "a whole number", ""),
        ("text", "an object", "`format`: text, json_object or json_schema, always enforced."),
        ("tools", "a list", "Functions; as text where the chat template reads none."),
        ("tool_choice", "text or an object", ""),
        ("parallel_tool_calls", "true or false", ""),
        ("reasoning", "an object", "`effort`."),
        ("top_logprobs", "a whole number", "At most 20."),
        ("include", "a list", "`message.output_text.logprobs`; others are moot."),
        ("stream_options", "an object", ""),
        ("metadata", "an object", "Comes back with the response; not stored."),
        required=("input",),
    ),
    *table(
        "honoured",
        (MESSAGES,),
        (
            "messages",
            "a list",
            "Text, or blocks: text, image (base64, url), tool_use, tool_result (text, images; "
            "`is_error` writes Error before it), thinking; redacted thinking is passed over. An "
            "assistant's last message is gone on with; system messages stay where they stand.",
        ),
        ("max_tokens", "a whole number", "Bounded by the room that the prompt leaves."),
        (
            "system",
            "text or a list",
            "Text, or blocks of it; one that begins with x-anthropic-billing-header is left out.",
        ),
        ("stop_sequences", "a list", "At most 64, of 65,536 characters."),
        ("tools", "a list", "`name`, `description`, `input_schema`; other keys are moot."),
        (
            "tool_choice",
            "an object",
            "auto, any, tool or none, the second and third by a grammar; "
            "`disable_parallel_tool_use`.",
        ),
        (
            "thinking",
            "an object",
            "enabled, adaptive, between_tools or disabled: the template's enable_thinking and "
            "thinking. Left out, the template decides. disabled and `display: omitted` leave "
            "thoughts out of the answer; `budget_tokens` ends those of a model that marks them, "
            "unless a format or a forced call holds the answer.",
        ),
        (
            "output_config",
            "an object",
            "`format`: json_schema, always enforced; `effort`: a variable for the template.",
        ),
        ("output_format", "an object", "The older form of output_config.format."),
        (
            *("context_management", "an object"),
            "`edits` that keep everything, as clear_thinking with `keep: all`; others are refused.",
        ),
        required=("messages", "max_tokens"),
    ),
    *table(
        "honoured",
        POOLING_PATHS,
        (
            "truncate_prompt_tokens",
            "a whole number",
            "Keep the beginning of a text; -1: what fits. Without it one too long is refused.",
        ),
        (
            "use_activation",
            "true or false",
            "False: embeddings of any length, labels as logits.",
        ),
    ),
    *table(
        "honoured",
        _INPUTS,
        ("input", "text or a list", "Text, token ids, or a list of either; at most 2,048."),
        ("add_special_tokens", "true or false", "False: those of the text alone."),
        required=("input",),
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
        required=("query", "documents"),
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
    *table("moot", _ALL, ("user", "text", "Accounts are the key's.")),
    *table(
        "moot",
        _OPENAI,
        ("store", "true or false", "Nothing is stored."),
        ("safety_identifier", "text", ""),
        ("prompt_cache_key", "text", "Prefixes are found by their tokens."),
        ("prompt_cache_retention", "text", "The same."),
        ("request_id", "text", "The server's own is in `x-request-id`."),
        ("verbosity", "text", "No model here knows it."),
    ),
    *table("moot", _BOTH, ("guided_decoding_backend", "text", "There is one.")),
    *table("moot", (*_BOTH, MESSAGES), ("metadata", "an object", "Not stored.")),
    *table(
        "moot",
        (MESSAGES,),
        ("cache_control", "an object", "Prefixes are found by their tokens; so it is in blocks."),
        ("inference_geo", "text", "It is here."),
        ("speed", "text", "There is one."),
        ("user_profile_id", "text", "Accounts are the key's."),
        ("diagnostics", "an object", ""),
        ("fallbacks", "text or a list", "What is asked for answers."),
        ("fallback_credit_token", "text", "The same."),
    ),
    *table(
        "moot",
        _RESPONSES,
        ("client_metadata", "an object", "Not stored."),
        ("truncation", "text", "Nothing is left out in silence."),
    ),
    *table(
        "refused",
        _CHAT,
        ("functions", "a list", "Use tools."),
        ("function_call", "text or an object", "Use tool_choice."),
        ("audio", "an object", "Text alone is answered."),
        ("modalities", "a list", "Text alone is answered; ask for [text].", ["text"]),
        ("prediction", "an object", "Leave it out."),
        ("web_search_options", "an object", "Nothing is fetched."),
        ("chat_template", "text", "The model's own is used; set another when the server starts."),
    ),
    *table(
        "refused",
        _TEXT,
        ("suffix", "text", "Write the whole prompt.", ""),
        ("prompt_embeds", "anything", "Give text or token ids."),
    ),
    *table(
        "refused",
        _BOTH,
        ("moderation", "anything", "Leave it out."),
        ("kv_transfer_params", "an object", "There is one engine."),
        ("vllm_xargs", "an object", "Leave it out."),
        ("mm_processor_kwargs", "an object", "Set it when the server starts."),
    ),
    *table(
        "refused",
        _RESPONSES,
        ("previous_response_id", "text", "Nothing is stored: send all; clients do at store=False."),
        ("conversation", "anything", "Nothing is stored: send the whole conversation."),
        ("background", "true or false", "Use a batch.", False),
        ("prompt", "an object", "Prompts are not stored: send the input."),
        ("max_tool_calls", "a whole number", "Tools are called by the client."),
    ),
    *table(
        "refused",
        (MESSAGES,),
        ("container", "text or an object", "Nothing is run here."),
        ("compaction", "an object", "Ask for a summary in words."),
        ("thread", "an object", "Nothing is stored: send the whole conversation."),
        ("mcp_servers", "a list", "Tools are called by the client."),
    ),
    *table(
        "refused",
        _INPUTS,
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

TABLE: Mapping[str, Body] = {
    endpoint: body_of(field for field in _FIELDS if endpoint in field.endpoints)
    for endpoint in _ALL
}
