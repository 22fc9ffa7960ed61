"""The definition of an evaluation task, and the rows of the job that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from quire.errors import InvalidOption

Doc = Mapping[str, Any]

# lm-eval's seed for drawing few-shot examples; the same examples go before the same question.
FEW_SHOT_SEED = 1234
_BETWEEN_EXAMPLES = "\n\n"
_BEFORE_ANSWER = " "


@dataclass(frozen=True, slots=True)
class Examples:
    """The pool of few-shot examples, and how they are selected.

    `first`: always the first ones of the pool. Otherwise they are drawn anew for each question;
    `with_questions`: the pool has the questions themselves, so the question being asked is left
    out.
    """

    load: Callable[[], Sequence[Doc]]
    described: str
    first: bool = False
    with_questions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: its questions, their prompts, and how answers are judged.

    A doc is a question in the form of the data set. `target` is the answer after the prompt in a
    few-shot example; `truth` is the ground truth: a text, or the number of the right choice.
    """

    name: str
    kind: Literal["generate", "choices"]
    load: Callable[[], Sequence[Doc]]
    prompt: Callable[[Doc], str]
    target: Callable[[Doc], str]
    truth: Callable[[Doc], str | int]
    scorers: tuple[str, ...]
    examples: Examples
    choices: Callable[[Doc], Sequence[str]] | None = None
    description: str = ""
    shots: int = 0
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    doc_id: Callable[[Doc], str] | None = None
    group: str | None = None
    pattern: str | None = None  # regular expression for the strict reading of a number


def rows_of(task: Task, *, limit: int | None, shots: int | None) -> Iterator[dict[str, Any]]:
    """The rows of a job: prompt, truth, and for multiple choice the choices.

    The order of docs, the examples before each and the text between them are lm-eval's.
    """
    num_shots = task.shots if shots is None else shots
    pool = task.examples.load() if num_shots else []
    _check_pool(task, num_shots, len(pool))
    random = Random(FEW_SHOT_SEED)
    for number, doc in enumerate(task.load()[:limit]):
        taken = _take(task.examples, pool, num_shots, doc, random)
        parts = [task.prompt(ex) + _BEFORE_ANSWER + task.target(ex) for ex in taken]
        row: dict[str, Any] = {
            "task": task.name,
            "doc": task.doc_id(doc) if task.doc_id else str(number),
            "prompt": task.description + _BETWEEN_EXAMPLES.join([*parts, task.prompt(doc)]),
        }
        if task.choices is not None:
            choices = list(task.choices(doc))
            row["choices"] = choices
            row["continuations"] = [_BEFORE_ANSWER + choice for choice in choices]
        if task.group is not None:
            row["subject"] = task.group
        row["truth"] = task.truth(doc)
        yield row


def _check_pool(task: Task, num_shots: int, available: int) -> None:
    if num_shots < 0 or num_shots >= available + (not task.examples.with_questions):
        if num_shots == 0:
            return
        raise InvalidOption(
            f"--shots takes 0 to {available - task.examples.with_questions} for {task.name}, "
            f"not {num_shots}: its examples are {task.examples.described}",
            parameter="shots",
            value=num_shots,
        )


def _take(
    examples: Examples, pool: Sequence[Doc], num_shots: int, doc: Doc, random: Random
) -> Sequence[Doc]:
    if num_shots == 0:
        return []
    if examples.first:
        return pool[:num_shots]
    if not examples.with_questions:
        return random.sample(pool, num_shots)
    # For every question one more is drawn than needed, so that the draws do not depend on whether
    # the question itself is among them.
    drawn = [other for other in random.sample(pool, num_shots + 1) if other != doc]
    if len(drawn) < num_shots:  # the question is in the pool twice, and both were drawn
        drawn = random.sample([other for other in pool if other != doc], num_shots)
    return drawn[:num_shots]
