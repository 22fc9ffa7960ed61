"""Regexes as people write them, and any number of made-up ones."""

from __future__ import annotations

import random

REGEXES = [
    *("a", "abc", "a|b|c", "(ab)+", "a*b", "a?b?c", "a{3}", "a{2,4}", "a{2,}b", "a{,3}b"),
    *("[abc]+", "[^abc]{1,3}", "[a-z]{2,5}", "[A-Za-z0-9_-]{1,8}", "[]a]{2}", "[^]a]{2}"),
    *(r"\d{3}-\d{4}", r"\w{1,6}", r"\s\S{1,3}\s", r"\D\d", r"\W{1,2}", r"[\w.-]{1,9}"),
    *(r"[\d\s]{2,4}", r"[^\d\s]{2}", r"[\W]x", r"(yes|no|maybe)!?", r"^anchored$", "^a|b$"),
    *(r"\Aabc\Z", r"(?i)hello", r"(?i:yes) no", r"(?s).{1,3}", r".{1,4}", r"a*?b+?c??"),
    *(r"\d{1,3}(\.\d{1,3}){3}", r"[0-9a-f]{8}-[0-9a-f]{4}", r"#[0-9A-F]{6}", r"\$\d+\.\d{2}"),
    *(r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d)", r"[01]\d:[0-5]\d", r"v\d+(\.\d+){0,2}"),
    *(r"https?://[a-z]{1,8}\.(com|org)(/[a-z]{1,4})?", r"[a-z]{1,6}@[a-z]{1,6}\.[a-z]{2,3}"),
    *("é+ü?", "[äöü]{1,3}", "日本(語|人)", "[α-ω]{1,4}", "😀|🚀", "[😀-😎]{2}", r"é\x41\u00fc"),
    *(r"a\/b/c", "x\ny", r"tab\tnew\nend", r"\{\}\[\]\(\)\*\+\?\.\\\|\^\$", "a{x", "[a&&b~~c]+"),
    *("[[a]+", r"[\]\[]{2}", "(?P<year>[0-9]{4})", "(?:a|(?:b|c)d){2,3}", "(?#note)a(?#more)+b"),
    *("(a|ab)(c|bcd)(d*)", "(x+x+)+y", "(a+)+b", "(|a)b", "a(b|)", '"quoted"', "'single'", " lead"),
]

_ATOMS = ("a", "b", "ab", "x", "0", "7", "-", " ", ",", ":", "yes", "no", "The ", r"\.", "é", "_")
_CLASSES = ("[a-c]", "[0-9]", "[^a-z]", "[xyz ]", r"\d", r"\w", "[A-Z]", "[aeiou]", "[+-]")
_REPEATS = ("", "", "", "?", "{2}", "{1,3}", "{0,2}", "{2,4}")


def random_regex(rng: random.Random, depth: int = 3) -> str:
    """A regex whose matches are short: bounded repeats only, but for one + or * in eight."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        if depth > 0 and rng.random() < 0.4:
            options = [random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3))]
            one = f"({'|'.join(options)})"
        else:
            one = rng.choice(_CLASSES if rng.random() < 0.5 else _ATOMS)
            one = one if len(one) == 1 or one[0] in "[\\" else f"(?:{one})"
        parts.append(one + (rng.choice("+*") if rng.random() < 0.12 else rng.choice(_REPEATS)))
    return "".join(parts)


def random_regexes(count: int) -> list[str]:
    """The same ones each time, all different."""
    made: dict[str, None] = {}
    seed = 0
    while len(made) < count:
        made[random_regex(random.Random(f"regex {seed}"))] = None
        seed += 1
    return list(made)
