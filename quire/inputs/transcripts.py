"""Transcripts: the tokens that a model of the Whisper kind is asked with, and what it wrote as text
with times."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption, NotSupported

if TYPE_CHECKING:
    from quire.inputs.tokenizer import Tokenizer

TASKS = ("transcribe", "translate")
SECONDS_A_STEP = 0.02  # of times: 30 s are 1,500 steps
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class Segment:
    """A text, and from when to when it was said, in seconds."""

    start: float
    end: float
    text: str

    def later(self, seconds: float) -> Segment:
        return Segment(round(self.start + seconds, 2), round(self.end + seconds, 2), self.text)


@dataclass(frozen=True, slots=True)
class Doubts:
    """When an answer is not believed, as Whisper's own program has it: it repeats itself, which
    compresses well, or its tokens are unlikely. Unlikely ones where nobody seems to speak are
    noise."""

    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0  # the mean over an answer's tokens, its end among them
    no_speech_threshold: float = 0.6

    def is_silence(self, logprob: float, no_speech: float) -> bool:
        return no_speech > self.no_speech_threshold and logprob < self.logprob_threshold

    def hold(self, text: str, logprob: float) -> bool:
        data = text.encode("utf-8", "replace")
        ratio = len(data) / len(zlib.compress(data))
        return ratio > self.compression_ratio_threshold or logprob < self.logprob_threshold


@dataclass(frozen=True, slots=True)
class TranscriptTokens:
    """Special tokens of a model's vocabulary. `languages` is empty where it knows one alone, and
    `previous`, before what was said earlier, and `no_speech` are None where it has none."""

    start: int
    end: int
    no_times: int
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    previous: int | None = None
    no_speech: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, generation: Mapping[str, Any]) -> TranscriptTokens:
        """By their names, and by what generation_config.json says of languages."""

        def named(token: str) -> int:
            found = tokenizer.backend.token_to_id(token)
            if found is None:
                raise NotSupported(f"the model writes no transcripts: it has no token {token!r}.")
            return found

        words = {token: number for number, token in _added(tokenizer)}
        languages = {
            match[1]: number
            for token, number in words.items()
            if (match := _LANGUAGE.fullmatch(token))
        }
        if not generation.get("is_multilingual", bool(languages)):
            languages = {}
        tasks = {task: named(f"<|{task}|>") for task in TASKS} if languages else {}
        end = tokenizer.eos_ids[0] if tokenizer.eos_ids else named("<|endoftext|>")
        start, no_times = named("<|startoftranscript|>"), named("<|notimestamps|>")
        silent = words.get("<|nospeech|>", words.get("<|nocaptions|>"))  # a newer name and an older
        previous = words.get("<|startofprev|>")
        return cls(start, end, no_times, tasks, languages, previous, silent)

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    def check(self, language: str | None, task: str) -> None:
        """InvalidOption for what the model does not know."""
        known = self.languages or {"en": 0}
        if language is not None and language not in known:
            raise InvalidOption(
                f"language={language!r}: the model knows {', '.join(sorted(known))}",
                parameter="language",
                value=language,
            )
        if task not in TASKS or (task != TASKS[0] and not self.languages):
            can = " and ".join(TASKS if self.languages else TASKS[:1])
            raise InvalidOption(f"task={task!r}: the model can {can}", parameter="task", value=task)

    def needs_language(self, language: str | None) -> bool:
        """Whether the sound must tell it first."""
        return language is None and bool(self.languages)

    def prompt(self, language: str | None, task: str, *, times: bool) -> list[int]:
        """What the decoder begins with."""
        about: list[int] = []
        if language is not None and language in self.languages:
            about = [self.languages[language], self.tasks[task]]
        return [self.start, *about, *([] if times else [self.no_times])]

    def earlier(self, text: str, tokenizer: Tokenizer, most: int) -> list[int]:
        """What comes before a prompt so that it reads as if this had been said: the end of the
        text, in at most so many tokens."""
        if self.previous is None:
            raise NotSupported("initial_prompt: the model has no token '<|startofprev|>'.")
        ids = tokenizer.encode(" " + text.strip(), add_special_tokens=False).tolist()
        special = dict(_added(tokenizer))
        if found := [special[one] for one in ids if one in special]:
            raise InvalidOption(
                f"initial_prompt is words alone, and holds {found[0]!r}",
                parameter="initial_prompt",
                value=text,
            )
        return [self.previous, *ids[-most:]]

    def language_of(self, token: int) -> str:
        return next(name for name, known in self.languages.items() if known == token)

    def stopped_at(self, written: Sequence[int]) -> int | None:
        """Where an answer with times stopped before its sound did: the place of the end of the last
        text that another was to follow. None where it ends with the time of a text's end, behind
        which nothing is said, or holds but one text."""
        is_time = [token >= self.first_time for token in written if token != self.end]
        if is_time[-2:] == [False, True]:
            return None
        pairs = (i for i in range(len(is_time) - 2, -1, -1) if is_time[i] and is_time[i + 1])
        return next(pairs, None)

    def second_of(self, token: int) -> float:
        return round((token - self.first_time) * SECONDS_A_STEP, 2)

    def segments(
        self, written: Sequence[int], seconds: float, decode: Callable[[Sequence[int]], str]
    ) -> list[Segment]:
        """What was written between times; what has no end ends with the sound."""
        found: list[Segment] = []
        begun, text = 0.0, list[int]()
        for token in [*written, self.end]:
            if token < self.first_time and token != self.end:
                text.append(token)
                continue
            is_time = token >= self.first_time
            at = min(self.second_of(token), seconds) if is_time else seconds
            said = decode(text).strip()
            if said:
                found.append(Segment(round(begun, 2), round(max(at, begun), 2), said))
            begun, text = at, []
        return found


def _added(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return [(number, token.content) for number, token in added.items()]
