"""Reasoning: what a model thought aloud before its answer, apart from the answer.

One search per kind of tag, so the time is linear in the text. Reasoning in channels is read by
channels.py.
"""

from __future__ import annotations

from functools import cache

from quire.inputs.channels import AFTER_REASONING, CHANNEL
from quire.params.reasoning import TAGS


def split_reasoning(
    text: str, *, began_in_prompt: bool = False, tag: str = ""
) -> tuple[str | None, str]:
    """(reasoning, the rest): "<think>a</think>b" -> ("a", "b"), "b" -> (None, "b").

    Reasoning stands at the beginning or not at all. A closing tag alone ends reasoning that the
    prompt began, as chat templates do; one that never comes leaves no answer. With
    `began_in_prompt`, a text without a closing tag is all reasoning. White space around both
    parts is dropped where there is reasoning. With `tag`, only the pair that it opens counts.
    """
    body = text.lstrip()
    for opening, closing in pairs(tag):
        if body.startswith(opening):
            thought, closed, rest = body[len(opening) :].partition(closing)
            return thought.strip(), rest.strip() if closed else ""
    ends = [(body.find(closing), opening, closing) for opening, closing in pairs(tag)]
    for at, opening, closing in sorted(end for end in ends if end[0] >= 0):
        # Where the prompt opened it, the first closing tag ends it, as one who reads along sees it.
        if began_in_prompt or opening not in body[:at]:
            return body[:at].strip(), body[at + len(closing) :].strip()
    return (text.strip(), "") if began_in_prompt else (None, text)


def opens_reasoning(prompt: str, tag: str = "") -> bool:
    """Whether a prompt ends inside reasoning that it opened itself, as some templates do."""
    return prompt.rstrip().endswith(tuple(opening for opening, _ in pairs(tag)))


def closings(tag: str = "") -> tuple[str, ...]:
    """What may end reasoning."""
    channels = AFTER_REASONING if tag in ("", CHANNEL) else ()
    return (*(closing for _, closing in pairs(tag)), *channels)


@cache  # asked for each prompt, and tags are few
def pairs(tag: str) -> tuple[tuple[str, str], ...]:
    """Of the tags that may open and close reasoning, those that count."""
    return tuple(pair for pair in TAGS if not tag or pair[0] == tag)
