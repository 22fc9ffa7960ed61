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
        ("service_tier", "text", "`flex` puts the request into the batch lane; others do nothing."),
        ("priority", "a whole number", "Above 0 puts the request into the batch lane."),
        ("cache_salt", "text", "Requests with the same salt (and key) share cached prefixes."),
    ),
    *table(
        "honoured",
        _WRITING,
        ("temperature", "a number", "0 is greedy."),
        ("top_p", "a number", "0: only the likeliest token."),
        ("top_k", "a whole number", ""),
        ("min_p", "a number", ""),
        ("repetition_penalty", "a number", ""),
        ("seed", "a whole number", "The same seed and prompt give the same text."),
        ("chat_template_kwargs", "an object", "Variables for the chat template."),
        ("truncate_prompt_tokens", "a whole number", "Keeps the prompt's end; -1: all that fits."),
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
        ("n", "a whole number", "At most 128; with all prompts at most 1,024 answers."),
        ("stop", "text or a list", "At most 64, of 65,536 characters in all."),
        ("presence_penalty", "a number", ""),
        ("frequency_penalty", "a number", ""),
        ("logit_bias", "an object", "Token ids to -100 .. 100; at most 1,024."),
        (
            "response_format",
            "an object",
            "Always enforced, `strict` or not, after the thoughts of a model that thinks. With "
            "tools the answer follows it or is tool calls. Objects have only the properties that "
            "the schema names, unless it says `additionalProperties`; this also holds for the "
            "arguments of forced calls.",
        ),
        (
            "structured_outputs",
            "an object",
            "One of json, regex, choice, grammar, json_object. Choices of more than 4,096 "
            "characters in all are drawn token by token.",
        ),
        ("guided_json", "anything", "An older form of structured_outputs."),
        ("guided_regex", "text", "Older, for structured_outputs with regex."),
        ("guided_choice", "a list", "Older, for structured_outputs; at most 16,384."),
        ("guided_grammar", "text", "Older, for structured_outputs with grammar."),
        ("min_tokens", "a whole number", ""),
        ("thinking_token_budget", "a whole number", "Thoughts are ended after so many tokens."),
        ("ignore_eos", "true or false", ""),
        ("stop_token_ids", "a list", "At most 1,024."),
        ("bad_words", "a list", "At most 1,024, of 65,536 characters in all."),
        ("allowed_token_ids", "a list", "At most 262,144."),
        ("prompt_logprobs", "a whole number", "Not in a stream."),
        ("skip_special_tokens", "true or false", ""),
        ("spaces_between_special_tokens", "true or false", ""),
        ("include_stop_str_in_output", "true or false", ""),
        (
            "add_special_tokens",
            "true or false",
            "For completions; a chat template writes its own.",
        ),
        ("return_token_ids", "true or false", "Adds `token_ids` and `prompt_token_ids`."),
        ("use_beam_search", "true or false", "The best `n` of `n` beams; not in a stream."),
        ("length_penalty", "a number", "In a beam search above 1 favours long answers."),
    ),
    *table(
        "honoured",
        _CHAT,
        (
            "messages",
            "a list",
            "Text, or parts: text, images, sounds, if the model reads them; the role developer is "
            "read as system.",
        ),
        ("max_completion_tokens", "a whole number", "Replaces max_tokens if both are given."),
        ("logprobs", "true or false", ""),
        ("top_logprobs", "a whole number", "At most 20; only with logprobs."),
        ("tools", "a list", "Functions; as text if the chat template has no place for them."),
        ("tool_choice", "text or an object", "A grammar enforces all but none and auto."),
        ("parallel_tool_calls", "true or false", "False: at most one call."),
        ("reasoning_effort", "text", "A variable for the template; none also turns thinking off."),
        ("documents", "a list", "For chat templates that use them."),
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
        ("echo", "true or false", "The prompt before the answer; logprobs are of both."),
        ("best_of", "a whole number", "Must be n: all answers that are written are returned."),
        required=("prompt",),
    ),
    *table(
        "honoured",
        _RESPONSES,
        ("input", "text or a list", "Text, or messages as in a chat."),
        ("instructions", "text", "A system message before the input."),
        ("max_output_tokens", "a whole number", ""),
        ("text", "an object", "`format`: text, json_object or json_schema, always enforced."),
        ("tools", "a list", "Functions; as text if the chat template has no place for them."),
        ("tool_choice", "text or an object", ""),
        ("parallel_tool_calls", "true or false", ""),
        ("reasoning", "an object", "`effort`, a variable for the template."),
        ("top_logprobs", "a whole number", "At most 20."),
        ("include", "a list", "`message.output_text.logprobs`; others are moot."),
        ("stream_options", "an object", ""),
        ("metadata", "an object", "Returned with the response; not stored."),
        required=("input",),
    ),
    *table(
        "honoured",
        (MESSAGES,),
        (
            "messages",
            "a list",
            "Text, or blocks: text, image (base64, url), tool_use, tool_result (text, images; "
            "`is_error` writes Error before it), thinking; redacted thinking is ignored. A last "
            "message of the assistant is continued; system messages stay in their places.",
        ),
        ("max_tokens", "a whole number", "Lowered to the room that the prompt leaves."),
        (
            "system",
            "text or a list",
            "Text, or blocks of it; those that begin with x-anthropic-billing-header are left out.",
        ),
        ("stop_sequences", "a list", "At most 64, of 65,536 characters in all."),
        ("tools", "a list", "`name`, `description`, `input_schema`; other keys are moot."),
        (
            "tool_choice",
            "an object",
            "auto, any, tool or none; a grammar enforces any and tool. With "
            "`disable_parallel_tool_use` at most one call.",
        ),
        (
            "thinking",
            "an object",
            "enabled, adaptive, between_tools or disabled: sets the template's enable_thinking "
            "and thinking; without it the template decides. disabled and `display: omitted` "
            "leave thoughts out of the answer. `budget_tokens` ends the thoughts of a model that "
            "marks them, unless a format or a forced call is enforced.",
        ),
        (
            "output_config",
            "an object",
            "`format`: json_schema, always enforced; `effort`: a variable for the template.",
        ),
        ("output_format", "an object", "An older form of output_config.format."),
        (
            *("context_management", "an object"),
            "Only `edits` that keep everything, as clear_thinking with `keep: all`.",
        ),
        required=("messages", "max_tokens"),
    ),
    *table(
        "honoured",
        POOLING_PATHS,
        (
            "truncate_prompt_tokens",
            "a whole number",
            "Keeps a text's first tokens; -1: as many as fit. Without it long texts are refused.",
        ),
        (
            "use_activation",
            "true or false",
            "False: embeddings are not normalised, and labels are logits.",
        ),
    ),
    *table(
        "honoured",
        _INPUTS,
        ("input", "text or a list", "Text, token ids, or a list of either; at most 2,048."),
        ("add_special_tokens", "true or false", "False: none are added to those of the text."),
        required=("input",),
    ),
    *table(
        "honoured",
        _VECTORS,
        ("encoding_format", "text", "`float`, or `base64` of float32 numbers."),
        ("dimensions", "a whole number", "Shortens embeddings, if the model was made for that."),
        ("prompt_name", "text", "Names a prompt of the model, put before each text."),
    ),
    *table(
        "honoured",
        (POOLING,),
        ("task", "text", "embed, classify, token_embed, token_classify."),
    ),
    *table(
        "honoured",
        RERANKS,
        ("query", "text", ""),
        ("documents", "a list", "Texts, or objects with a `text`; at most 2,048."),
        ("top_n", "a whole number", "Returns only so many, the best."),
        (
            "return_documents",
            "true or false",
            "Returns the texts; by default true except for `/v2/rerank`.",
        ),
        required=("query", "documents"),
    ),
    *table(
        "honoured",
        (SCORE,),
        ("text_1", "text or a list", "For a pooling model: one text, or as many as in `text_2`."),
        ("text_2", "text or a list", "At most 2,048."),
        ("query", "text", "For a generating model: read with each item."),
        ("items", "a list", "Texts; at most 1,024."),
        ("label_token_ids", "a list", "The scores are the chances of these tokens to come next."),
        ("apply_softmax", "true or false", "Probabilities among the labels only."),
        ("item_first", "true or false", "True puts the item before the query."),
    ),
    *table("moot", _ALL, ("user", "text", "Requests are counted by API key.")),
    *table(
        "moot",
        _OPENAI,
        ("store", "true or false", "Nothing is stored."),
        ("safety_identifier", "text", ""),
        ("prompt_cache_key", "text", "Cached prefixes are found by their tokens."),
        ("prompt_cache_retention", "text", "Prefixes stay cached while there is room."),
        ("request_id", "text", "The server's own id is in `x-request-id`."),
        ("verbosity", "text", "No model here has such a setting."),
    ),
    *table("moot", _BOTH, ("guided_decoding_backend", "text", "There is only one backend.")),
    *table("moot", (*_BOTH, MESSAGES), ("metadata", "an object", "Not stored.")),
    *table(
        "moot",
        (MESSAGES,),
        ("cache_control", "an object", "Prefixes are cached without it, also those of blocks."),
        ("inference_geo", "text", "Requests are computed where the server runs."),
        ("speed", "text", "There is only one speed."),
        ("user_profile_id", "text", "Requests are counted by API key."),
        ("diagnostics", "an object", ""),
        ("fallbacks", "text or a list", "Only the model that `model` names answers."),
        ("fallback_credit_token", "text", "Only the model that `model` names answers."),
    ),
    *table(
        "moot",
        _RESPONSES,
        ("client_metadata", "an object", "Not stored."),
        ("truncation", "text", "A prompt that is too long is refused, and not cut."),
    ),
    *table(
        "refused",
        _CHAT,
        ("functions", "a list", "Use tools."),
        ("function_call", "text or an object", "Use tool_choice."),
        ("audio", "an object", "Answers are text only."),
        ("modalities", "a list", "Answers are text only: ask for [text].", ["text"]),
        ("prediction", "an object", "Leave it out."),
        ("web_search_options", "an object", "The server does not search the web."),
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
        ("kv_transfer_params", "an object", "Keys and values are not sent to other engines."),
        ("vllm_xargs", "an object", "Leave it out."),
        ("mm_processor_kwargs", "an object", "Set it when the server starts."),
    ),
    *table(
        "refused",
        _RESPONSES,
        ("previous_response_id", "text", "Nothing is stored: send all, as with store=False."),
        ("conversation", "anything", "Nothing is stored: send the whole conversation."),
        ("background", "true or false", "Use a batch.", False),
        ("prompt", "an object", "Prompts are not stored: send the input."),
        ("max_tool_calls", "a whole number", "Tools are called by the client."),
    ),
    *table(
        "refused",
        (MESSAGES,),
        ("container", "text or an object", "The server runs no code."),
        ("compaction", "an object", "Ask for a summary in a message."),
        ("thread", "an object", "Nothing is stored: send the whole conversation."),
        ("mcp_servers", "a list", "Tools are called by the client."),
    ),
    *table(
        "refused",
        _INPUTS,
        ("messages", "a list", "Apply the chat template, and send its text as input."),
        ("chat_template", "text", "Apply the template, and send its text as input."),
    ),
    *table(
        "refused",
        RERANKS,
        ("max_tokens_per_doc", "a whole number", "Use truncate_prompt_tokens."),
        ("max_chunks_per_doc", "a whole number", "Use truncate_prompt_tokens."),
        ("rank_fields", "a list", "Send each document as one text."),
    ),
    *table("refused", _PAIRS, ("chat_template", "text", "Pairs are written as the model says.")),
]

TABLE: Mapping[str, Body] = {
    endpoint: body_of(field for field in _FIELDS if endpoint in field.endpoints)
    for endpoint in _ALL
}
