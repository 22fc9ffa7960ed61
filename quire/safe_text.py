"""Text made safe to show: nothing in it moves a terminal's cursor, forges a line or tells a secret.

What a model wrote, what its files, a job or a row hold, and what an error quotes of them, are
other people's texts. Each door to a terminal or a log sends them through here.
"""

from __future__ import annotations

import os
import re

# Controls (escape sequences begin with one, of 7 or of 8 bits), line ends that terminals do not
# know as such, marks that reverse the order of what is read, and halves of characters.
# Joiners and direction marks stay: Persian, Arabic and many emoji cannot do without them.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
_URL_USER = re.compile(r"(?<=://)[^\s/?#@\"'<>]+@")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_SHORTEST_SECRET = 6  # characters; what is shorter occurs in texts that tell nothing
HIDDEN = "..."


def shown(text: str) -> str:
    """Text of any number of lines, with what a terminal would act on written out: "\\x1b[2J"."""
    return _HARMFUL.sub(lambda found: _written_out(found[0]), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Escapes what could forge a second line or colour a terminal: "a\\nb" -> "a\\\\nb"."""
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def shown_json(text: str) -> str:
    """JSON that means the same, with the characters a terminal would act on as JSON escapes."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_secrets(text: str, *known: object) -> str:
    """The text without these secrets, HF_TOKEN, anything of the Hub's tokens' form, and the
    name and password in a URL."""
    for secret in (*known, os.environ.get("HF_TOKEN")):
        if isinstance(secret, str) and len(secret.strip()) >= _SHORTEST_SECRET:
            for form in (secret, repr(secret)[1:-1], secret.strip()):
                text = text.replace(form, HIDDEN)
    return _HUB_TOKEN.sub(HIDDEN, _URL_USER.sub(f"{HIDDEN}@", text))


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
