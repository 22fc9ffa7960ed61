"""Small tokenizers of each kind, trained here, and strings that are hard on them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and it's not the first time.",
    "In 1984 the price rose from $12.50 to $1,234,567.89 (about 98,765 %).",
    "Der schnelle braune Fuchs springt über den faulen Hund; das hätte keiner gedacht.",
    "Le cœur a ses raisons que la raison ne connaît point, n'est-ce pas ?",
    "El veloz murciélago hindú comía feliz cardillo y kiwi. ¡Qué niño tan pingüino!",
    "人工智能正在改变世界,我们需要理解它。",
    "吾輩は猫である。名前はまだ無い。",
    "Привет, мир! Как дела? Всё хорошо, спасибо.",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1, 2, 3]}\n\n\tif x != y and z <= 10: pass",
    "We'll see; they've said I'm WRONG, haven't THEY'RE shouted? She'd know.",
    "x = (a + b) * c / d - e % f && g || !h; // comment 🚀 emoji 👩‍👩‍👧 flags 🇩🇪",
]
PIECES = [
    *" \t\n\r",
    "  ",
    "   ",
    "\n\n",
    "\r\n",
    *"0123456789²½٣",
    *"aZéßñœ人工は이한",
    *".,;:!?'\"()[]{}<>|/\\$%^&*~`@#+-=_",
    "'s",
    "'LL",
    "e\u0301",
    "\u00a0",
    "\u200d",
    "\ufffd",
    "😀",
    "👩‍👩‍👧",
    "▁",
    "Ġ",
    "<0x0A>",
    "hello",
    " world",
    " the",
    "123456",
    " 2024",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def strings(count: int, seed: int = 0, special: bool = False) -> list[str]:
    """Strings of 1 .. 40 pieces: words, marks, spaces, digits, scripts, emoji."""
    rng = random.Random(seed)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    pool = PIECES + words + [" " + word for word in words] + (SPECIAL[2:] * 4 if special else [])
    return ["".join(rng.choices(pool, k=rng.randint(1, 40))) for _ in range(count)]


def train_byte_bpe(digits: bool) -> Backend:
    return Backend.from_str(_byte_bpe(digits))


def train_sentencepiece() -> Backend:
    """SentencePiece's kind of BPE with byte fallback, as Llama 2's tokenizer.json has it."""
    return Backend.from_str(_sentencepiece())


@cache
def _byte_bpe(digits: bool, vocab_size: int = 900) -> str:
    backend = Backend(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if digits
        else byte_level
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 4, trainer)
    return backend.to_str()


@cache
def _sentencepiece(vocab_size: int = 800) -> str:
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 256, show_progress=False)
    trained.train_from_iterator([" " + sentence for sentence in SENTENCES * 4], trainer)
    state = json.loads(trained.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].__getitem__)
    vocab = {token: i for i, token in enumerate([*SPECIAL, *BYTES, *pieces])}
    model = models.BPE(
        vocab,
        [tuple(merge) for merge in state["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return backend.to_str()


def save(backend: Backend, directory: Path, **config: Any) -> Path:
    """The tokenizer as a Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def gguf_metadata(backend: Backend, kind: str, **more: Any) -> dict[str, Any]:
    """The same tokenizer as a GGUF file would describe it."""
    state = json.loads(backend.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    metadata: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "token_type": [
            2 if t == "<unk>" else 3 if t in special else 6 if t in BYTES and kind == "llama" else 1
            for t in tokens
        ],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "gpt2":
        metadata["merges"] = [" ".join(merge) for merge in state["merges"]]
    else:
        rank = {left + right: -float(n) for n, (left, right) in enumerate(state["merges"])}
        metadata["scores"] = [rank.get(token, -1e6) for token in tokens]
    metadata |= more
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
