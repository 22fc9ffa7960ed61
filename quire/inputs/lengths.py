"""What is checked of a prompt once it is token ids: that there are some, that the model has them,
and that they fit."""

from __future__ import annotations

from quire.errors import InvalidPrompt, PromptTooLong, QuireError
from quire.request import Ints


def check_encoded(ids: Ints, vocab_size: int) -> Ints | QuireError:
    """The ids that a tokenizer made of a text, or what is wrong with them."""
    if not len(ids):
        return InvalidPrompt(
            "the text gives no tokens at all; give it at least one character that counts",
            parameter="prompt",
        )
    if int(ids.max()) >= vocab_size:
        return InvalidPrompt(
            f"the tokenizer gives token {int(ids.max())}, and the model has only "
            f"{vocab_size}; the tokenizer is another model's, or the text names a token "
            "that was added to it later",
            parameter="prompt",
            value=int(ids.max()),
        )
    return ids


def check_length(count: int, num_media: int, max_model_len: int, pool_tokens: int) -> None:
    """PromptTooLong where so many tokens, some of them of media, find no room."""
    if count < max_model_len and count <= pool_tokens:
        return
    has = f"the prompt has {count} tokens"
    has += f" ({num_media} of them of media)" if num_media else ""
    if count >= max_model_len:
        way_out = f"Shorten it, or set truncate_prompt_tokens={max_model_len - 1} to keep its end"
        if num_media:
            way_out = "Shorten the text, or pass fewer or smaller media, which are not cut"
        raise PromptTooLong(
            f"{has}; the model takes {max_model_len} with the "
            f"answer (max_model_len), so at most {max_model_len - 1} here. {way_out}",
            parameter="prompt",
            value=count,
        )
    raise PromptTooLong(
        f"{has}; the KV cache has room for {pool_tokens} in "
        "all. Shorten it, or give the cache more memory (kv_cache_memory_bytes)",
        parameter="prompt",
        value=count,
    )
