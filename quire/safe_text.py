"""Text made safe to show: it cannot move a terminal's cursor, forge a line or show a secret.

Text that a model wrote, or that comes from its files, a job or a row, also where an error quotes
it, was written by others. It goes through here on its way to a terminal or a log.
"""

from __future__ import annotations

import os
import re

# Control characters (escape sequences begin with one, of 7 or 8 bits), line ends that terminals do
# not treat as such, marks that reverse the reading order, and lone surrogates.
# Joiners and direction marks stay: Persian, Arabic and many emoji need them.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
_URL_USER = re.compile(r"(?<=://)[^\s/?#@\"'<>]+@")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_SHORTEST_SECRET = 6  # characters; shorter ones would also match ordinary text
HIDDEN = "..."


def shown(text: str) -> str:
    """The text, with characters that a terminal would act on written as escapes: "\\x1b[2J"."""
    return _HARMFUL.sub(lambda found: _written_out(found[0]), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text on one line, unprintable characters written as escapes: "a\\nb" -> "a\\\\nb"."""
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def shown_json(text: str) -> str:
    """JSON that means the same, with the characters a terminal would act on as JSON escapes."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_secrets(text: str, *known: object) -> str:
    """The text without these secrets, HF_TOKEN, anything that looks like a token of the Hub, and
    the name and password in a URL."""
    for secret in (*known, os.environ.get("HF_TOKEN")):
        if isinstance(secret, str) and len(secret.strip()) >= _SHORTEST_SECRET:
            for form in (secret, repr(secret)[1:-1], secret.strip()):
                text = text.replace(form, HIDDEN)
    return _HUB_TOKEN.sub(HIDDEN, _URL_USER.sub(f"{HIDDEN}@", text))


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
