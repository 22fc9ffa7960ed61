"""Which model a benchmark runs: a path, an alias, or a shape of models/ with random weights."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODELS = Path(__file__).parent / "models"
_TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"


@dataclass(frozen=True)
class Model:
    """What to hand to `LLM`: a path or name, and the options it needs."""

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def dummy(self) -> bool:
        return self.options.get("load_format") == "dummy"


@contextmanager
def opened(name: str, *, speaks: bool = False, **options: Any) -> Iterator[Model]:
    """The model of this name; that of a shape lives in a directory that is removed again, with a
    tokenizer and a template for chats where it `speaks`."""
    shape = MODELS / f"{name}.json"
    if not shape.exists():
        yield Model(name, name, dict(options))
        return
    with TemporaryDirectory(prefix="quire-shape-") as directory:
        config = json.loads(shape.read_text())
        (Path(directory) / "config.json").write_text(json.dumps(config))
        # A shape has neither weights nor a tokenizer.
        needed: dict[str, Any] = {"load_format": "dummy"}
        if speaks:
            save_tokenizer(Path(directory), config["vocab_size"], chat_template=_TEMPLATE)
        else:
            needed["skip_tokenizer_init"] = True
        yield Model(name, directory, {**needed, **options})


def save_tokenizer(home: Path, size: int, **more: str) -> None:
    """Byte pairs: the bytes, then letters and spaces in twos, threes and so on up to `size`; its
    config says `more`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|end|>": 0, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    letters, merges = [*string.ascii_lowercase, "\u0120"], []
    before = letters
    while len(vocab) < size:
        made = []
        for first, second in itertools.product(before, letters):
            if len(vocab) == size:
                break
            merges.append((first, second))
            vocab[first + second] = len(vocab)
            made.append(first + second)
        before = made
    made_of = Tokenizer(models.BPE(vocab, merges))
    made_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made_of.decoder = decoders.ByteLevel()
    made_of.add_special_tokens(["<|end|>"])
    made_of.save(str(home / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", **more}
    (home / "tokenizer_config.json").write_text(json.dumps(config))
