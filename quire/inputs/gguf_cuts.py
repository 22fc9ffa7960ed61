"""The rules by which text is cut before pairs are merged, by their names in GGUF files."""

from __future__ import annotations

from typing import NamedTuple

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_MARKS = (
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CONTRACTIONS + _WORDS_AND_MARKS % r"\p{N}{1,3}"
_QWEN2 = _CONTRACTIONS + _WORDS_AND_MARKS % r"\p{N}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _MARKS = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}" + _MARKS
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}{_MARKS}"
)

# Cased letters, as DeepSeek's first tokenizers list them.
_CASED = (
    "A-Za-z"
    "µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_NEWLINE, _HAN = r"[\r\n]", "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)


class Cut(NamedTuple):
    """How text is cut before merging: patterns applied one after the other, each to the pieces
    of the one before."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is taken without merging
    nfc: bool = False
    bos: bool = False  # the beginning token is added where the file does not say


# Han apart; otherwise as GPT-4o, with marks that take no slash.
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = r"\p{Han}+|" + _GPT4O.replace(r"\p{M}]", rf"\p{{M}}{_NOT_HAN}").replace(
    "[\\r\\n/]", "[\\r\\n]"
)
_SEED = _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_DIGITS_THEN_GPT2 = Cut((r"\p{N}", _GPT2))
_DIGITS_APART = (
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b", "exaone", "mellum2"),
)
_LIKE_GPT2 = (
    *("gpt-2", "phi-2", "olmo", "mpt", "mellum", "trillion", "a.x-4.0", "granite-docling"),
    *("gigachat", "exaone4", "jais", "roberta-bpe"),
)
_LIKE_LLAMA3 = Cut((_LLAMA3,), whole_words=True, bos=True)
_NAMES_OF_LLAMA3 = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
)
_LIKE_QWEN2 = Cut((_QWEN2,), nfc=True)
_LIKE_DEEPSEEK3 = Cut((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3))
CUTS = {
    **dict.fromkeys(_DIGITS_APART, _DIGITS_THEN_GPT2),
    **dict.fromkeys(_NAMES_OF_LLAMA3, _LIKE_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"), _LIKE_QWEN2),
    **dict.fromkeys(_LIKE_GPT2, Cut((_GPT2,))),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), Cut((_LLAMA3,))),
    **dict.fromkeys(("stablelm2", "kormo", "hunyuan", "solar-open"), Cut((_QWEN2,))),
    "modern-bert": Cut((_GPT2,), nfc=True),
    "seed-coder": Cut((_SEED,)),
    "kimi-k2": Cut((_KIMI,)),
    "tiny_aya": Cut((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "qwen35": Cut((_QWEN35,), nfc=True),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": Cut(
        (
            *(_NEWLINE, rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            *(r"\s+$", _HAN, r"\p{N}+"),
        )
    ),
    "deepseek-coder": Cut((_NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _LIKE_DEEPSEEK3),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), Cut((_GPT4O,))),
    "tekken": Cut((_TEKKEN,), whole_words=True, bos=True),
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
