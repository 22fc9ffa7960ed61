"""get_tokenizer: a model's tokenizer without its weights, as a Transformers tokenizer."""

from __future__ import annotations

import os
from typing import Any

from quire.errors import NotSupported
from quire.params.rules import show

TokenizerLike = Any  # the type of a tokenizer, as scripts write it


def get_tokenizer(
    tokenizer_name: str | os.PathLike[str],
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    download_dir: str | None = None,
    **others: Any,
) -> Any:
    """The `transformers.PreTrainedTokenizerFast` of a folder, GGUF file, alias or Hub id.

    `trust_remote_code` is accepted and has no effect: no code of a model is run.
    """
    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.inputs.hf_tokenizer import load_hf_tokenizer
    from quire.weights.source import locate

    if tokenizer_mode not in ("auto", "hf"):
        raise NotSupported(f"tokenizer_mode={show(tokenizer_mode)} is not built: use 'auto'.")
    if others:
        raise NotSupported(
            f"get_tokenizer({', '.join(others)}=...) is not built: change the returned tokenizer."
        )
    files = locate(tokenizer_name, revision=revision, download_dir=download_dir, weights=False)
    if files.kind == "gguf":
        return load_gguf_tokenizer(files.gguf.metadata).hf_tokenizer()
    return load_hf_tokenizer(files.path).hf_tokenizer()
