"""Transcripts: the prompt tokens for models like Whisper, and the conversion of their answers to
text with times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption, NotSupported
from quire.inputs.transcript_params import TASKS

if TYPE_CHECKING:
    from quire.inputs.tokenizer import Tokenizer

SECONDS_A_STEP = 0.02  # the step of time tokens: 30 s are 1,500 steps
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")


@dataclass(frozen=True, slots=True)
class Segment:
    """A text with its start and end in seconds. The figures below belong to the whole answer, so
    they are the same for all its segments."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    logprob: float = 0.0  # the mean over the answer's tokens and its end token
    compression_ratio: float = 1.0
    no_speech: float = 0.0  # the probability that the sound has no speech

    def later(self, seconds: float) -> Segment:
        start, end = round(self.start + seconds, 2), round(self.end + seconds, 2)
        return replace(self, start=start, end=end)


@dataclass(frozen=True, slots=True)
class TranscriptTokens:
    """Special tokens of a model's vocabulary. `languages` is empty if the model has only one.
    `previous` (before earlier text) and `no_speech` are None if the model has no such token."""

    start: int
    end: int
    no_times: int
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    previous: int | None = None
    no_speech: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, generation: Mapping[str, Any]) -> TranscriptTokens:
        """Find the tokens by their names, and by `is_multilingual` of generation_config.json."""

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
        """InvalidOption for a language or task that the model does not know."""
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
        return language is None and bool(self.languages)

    def prompt(self, language: str | None, task: str, *, times: bool) -> list[int]:
        """The tokens with which the decoder begins."""
        about: list[int] = []
        if language is not None and language in self.languages:
            about = [self.languages[language], self.tasks[task]]
        return [self.start, *about, *([] if times else [self.no_times])]

    def earlier(self, text: str, tokenizer: Tokenizer, most: int) -> list[int]:
        """Tokens before the prompt that make the model take this text as said before: the end of
        the text, in at most `most` tokens."""
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
        """For an answer with times that stopped before the end of its sound, the index of the end
        time of its last complete segment. None if the answer ends with the end time of a segment,
        after which nothing is said, or has only one segment."""
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
        """The texts between time tokens; a text without an end time ends with the sound."""
        found: list[Segment] = []
        begun, text = 0.0, list[int]()
        for token in [*written, self.end]:
            if token < self.first_time and token != self.end:
                text.append(token)
                continue
            is_time = token >= self.first_time
            at = min(self.second_of(token), seconds) if is_time else seconds
            if words := decode(text).strip():
                end = round(max(at, begun), 2)
                found.append(Segment(round(begun, 2), end, words, tuple(text)))
            begun, text = at, []
        return found


def _added(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return [(number, token.content) for number, token in added.items()]


@dataclass(slots=True)
class Transcript:
    """The transcript of a whole sound."""

    seconds: float = 0.0
    language: str | None = None
    segments: list[Segment] = field(default_factory=list)

    def add_piece(
        self, start: float, end: float, language: str | None, segments: Iterable[Segment]
    ) -> None:
        """Add the next piece, whose times count from its own beginning."""
        self.seconds = max(self.seconds, end)
        self.language = self.language or language
        self.segments += [one.later(start) for one in segments]

    @property
    def text(self) -> str:
        between = "" if self.language in _WITHOUT_SPACES else " "
        return between.join(one.text for one in self.segments)

    def as_text(self, format: str) -> str:
        """All of it as `text`, or as subtitles: `srt` or `vtt`."""
        if format == "text":
            return self.text + "\n"
        lines = ["WEBVTT\n"] if format == "vtt" else []
        comma = "." if format == "vtt" else ","
        for number, one in enumerate(self.segments, start=1):
            # A blank line would end the subtitle.
            said = "\n".join(line for line in one.text.splitlines() if line.strip())
            times = f"{_clock(one.start, comma)} --> {_clock(one.end, comma)}"
            lines.append(f"{number}\n{times}\n{said.replace('-->', '->')}\n")
        return "\n".join(lines)


def _clock(seconds: float, comma: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{comma}{rest % 1000:03}"
