"""Reasoning: what a model thought aloud before its answer, apart from the answer.

One search per kind of tag, so the time is linear in the text.
"""

from __future__ import annotations

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


def split_reasoning(text: str, *, began_in_prompt: bool = False) -> tuple[str | None, str]:
    """(reasoning, the rest): "<think>a</think>b" -> ("a", "b"), "b" -> (None, "b").

    Reasoning stands at the beginning or not at all. A closing tag alone ends reasoning that the
    prompt began, as chat templates do; one that never comes leaves no answer. With
    `began_in_prompt`, a text without a closing tag is all reasoning. White space around both
    parts is dropped where there is reasoning.
    """
    body = text.lstrip()
    for opening, closing in TAGS:
        if body.startswith(opening):
            thought, closed, rest = body[len(opening) :].partition(closing)
            return thought.strip(), rest.strip() if closed else ""
    for opening, closing in TAGS:
        thought, closed, rest = body.partition(closing)
        if closed and opening not in thought:
            return thought.strip(), rest.strip()
    return (text.strip(), "") if began_in_prompt else (None, text)
