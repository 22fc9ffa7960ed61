"""Separates the reasoning at the beginning of a model's text from the answer.

There is one search for each kind of tag, so the time is linear in the text. channels.py reads
reasoning in channels.
"""

from __future__ import annotations

from functools import cache

from quire.inputs.channels import AFTER_REASONING, CHANNEL
from quire.params.reasoning import TAGS


def split_reasoning(
    text: str, *, began_in_prompt: bool = False, tag: str = ""
) -> tuple[str | None, str]:
    """(reasoning, the rest): "<think>a</think>b" -> ("a", "b"), "b" -> (None, "b").

    Reasoning is at the beginning or there is none. A closing tag without an opening one ends
    reasoning that the prompt began, as some chat templates do. If an opened tag is never closed,
    there is no answer. With `began_in_prompt`, a text without a closing tag is all reasoning. If
    there is reasoning, white space around both parts is dropped. With `tag`, only its pair counts.
    """
    body = text.lstrip()
    for opening, closing in pairs(tag):
        if body.startswith(opening):
            thought, closed, rest = body[len(opening) :].partition(closing)
            return thought.strip(), rest.strip() if closed else ""
    ends = [(body.find(closing), opening, closing) for opening, closing in pairs(tag)]
    for at, opening, closing in sorted(end for end in ends if end[0] >= 0):
        # If the prompt opened it, the first closing tag ends it, as in a stream.
        if began_in_prompt or opening not in body[:at]:
            return body[:at].strip(), body[at + len(closing) :].strip()
    return (text.strip(), "") if began_in_prompt else (None, text)


def opens_reasoning(prompt: str, tag: str = "") -> bool:
    """Whether a prompt ends inside reasoning that it opened itself, as some templates do."""
    return prompt.rstrip().endswith(tuple(opening for opening, _ in pairs(tag)))


def closings(tag: str = "") -> tuple[str, ...]:
    """The tags that may end reasoning."""
    channels = AFTER_REASONING if tag in ("", CHANNEL) else ()
    return (*(closing for _, closing in pairs(tag)), *channels)


@cache  # asked for each prompt, and tags are few
def pairs(tag: str) -> tuple[tuple[str, str], ...]:
    """The (opening, closing) tags of reasoning; with `tag` only its pair."""
    return tuple(pair for pair in TAGS if not tag or pair[0] == tag)
