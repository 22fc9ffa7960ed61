"""The tokenizer of a model, or the one that an option names; the same for the chat template."""

from __future__ import annotations

from quire.inputs.chat import read_template
from quire.inputs.tokenizer import Tokenizer
from quire.options import Options
from quire.weights.source import ModelFiles, locate


def load_tokenizer(files: ModelFiles, options: Options) -> Tokenizer | None:
    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.inputs.hf_tokenizer import load_hf_tokenizer

    if options.skip_tokenizer_init:
        return None
    if options.tokenizer is not None and options.tokenizer != files.name:
        files = locate(
            options.tokenizer,
            revision=options.tokenizer_revision,
            download_dir=options.download_dir,
            token=options.hf_token,
            weights=False,
        )
    if files.kind == "gguf":
        tokenizer = load_gguf_tokenizer(files.gguf.metadata)
    else:
        tokenizer = load_hf_tokenizer(files.path)
    if options.chat_template:
        # Here, where each way to write out messages looks: of an LLM, a job, a server, a pipeline.
        tokenizer.chat_templates = {"default": read_template(options.chat_template)}
    tokenizer.special_tokens_in_messages = options.special_tokens_in_messages
    return tokenizer
