"""Everything quire raises on purpose.

QuireError
├── InvalidRequest            what was passed breaks a rule (a ValueError with .parameter, .value)
│   ├── InvalidParams         a sampling parameter
│   ├── InvalidPrompt         a prompt: wrong type, empty, token out of range, bad text
│   │   └── PromptTooLong     more tokens than the model or the KV pool takes
│   ├── InvalidGrammar        a schema, regex or grammar that cannot be followed
│   ├── InvalidAdapter        a LoRA adapter that is broken, not built, or of another model
│   └── InvalidOption         an engine option with a bad value
│       └── UnknownOption     an option that quire does not know (also a TypeError)
├── NotSupported              known, but not built (also a NotImplementedError)
├── ModelError                a model that cannot be used
│   ├── ModelNotFound         nothing there, or not reachable
│   ├── CorruptModel          files that contradict themselves
│   └── UnsupportedModel      an architecture or a format quire does not know
├── RowError                  one row went wrong while it ran; the others did not
│   ├── InvalidLogits         the model gave NaN or infinite logits
│   ├── GrammarFailed         its grammar came to a dead end, or to one of its limits
│   ├── NoTokenLeft           its constraints together forbade every token
│   ├── ProcessorFailed       one of its logits processors raised, or gave nothing of use
│   ├── AdapterFailed         its adapter's files changed or went, or it found no room
│   ├── MediumFailed          the model could not encode one of its images, sounds or videos
│   └── DoesNotFit            the row outgrew the whole KV pool
├── BatchError                some rows failed; .outputs has them all, .errors says which
│   └── InvalidBatch          one of them for what was passed with it (also an InvalidRequest)
├── EngineError               the engine cannot go on; .outputs has what was finished
│   ├── NotEnoughMemory       too little memory, with the numbers
│   └── RankDied              one of several ranks died, got stuck or went astray
├── JobError                  a job that cannot begin or go on
│   ├── JobChanged            what is asked for is not what the job on disk was made from
│   ├── JobLocked             another writer holds the job
│   ├── JobStopped            it stopped before its end; the same command continues it
│   └── CorruptJob            its files contradict themselves
├── EngineClosed              used after close()
├── EngineAsleep              used after sleep(), before wake_up()
└── EngineBusy                called from inside its own callback, or after fork()
Interrupted                   Ctrl-C, with .outputs (a KeyboardInterrupt)
QuireWarning                  accepted, with a remark (a UserWarning)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.safe_text import shown


class QuireError(Exception):
    """Any error quire raises on purpose."""

    def __str__(self) -> str:
        """Safe to print: messages quote files and rows, and Python prints uncaught errors."""
        return shown(super().__str__())


class InvalidRequest(QuireError, ValueError):
    """What the caller passed breaks a rule."""

    def __init__(
        self,
        message: str,
        *,
        parameter: str | None = None,
        value: Any = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message if index is None else f"prompt {index}: {message}")
        self.message, self.parameter, self.value, self.index = message, parameter, value, index

    def at(self, index: int) -> InvalidRequest:
        """The same error, naming the prompt it belongs to."""
        return type(self)(self.message, parameter=self.parameter, value=self.value, index=index)


class InvalidParams(InvalidRequest):
    """A sampling parameter breaks a rule."""


class InvalidPrompt(InvalidRequest):
    """A prompt has the wrong type, is empty, or holds what the model cannot read."""


class PromptTooLong(InvalidPrompt):
    """The prompt has more tokens than the model, or the KV pool, takes."""


class InvalidGrammar(InvalidRequest):
    """A schema, a regex or a grammar is broken, unsupported, unsatisfiable or too large."""


class InvalidAdapter(InvalidRequest):
    """A LoRA adapter is broken, asks for what is not built, or belongs to another model."""


class InvalidOption(InvalidRequest):
    """An engine option has a value that cannot work."""


class UnknownOption(InvalidOption, TypeError):
    """An option that quire does not know."""


class NotSupported(QuireError, NotImplementedError):
    """Known, but not built; the message says what to do instead."""


class ModelError(QuireError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """There is no model at that name or path."""


class CorruptModel(ModelError):
    """A model's files contradict themselves."""


class UnsupportedModel(ModelError):
    """An architecture, a file format or a quantisation that quire does not know."""


class RowError(QuireError):
    """One row went wrong while it ran; the others did not."""


class InvalidLogits(RowError):
    """The model gave NaN or infinite logits for this row."""


class GrammarFailed(RowError):
    """The row's grammar came to a dead end, or to a limit on its time or memory."""


class NoTokenLeft(RowError):
    """The row's constraints, all together, forbade every token that could come next."""


class ProcessorFailed(RowError):
    """One of the row's logits processors raised, never returned, or gave nothing of use."""


class AdapterFailed(RowError):
    """The row's adapter could not be read when its turn came, or there was no room for it."""


class MediumFailed(RowError):
    """The model's tower could not encode one of the row's images, sounds or videos."""


class DoesNotFit(RowError):
    """The row needs more KV blocks than the whole pool has."""


class _WithOutputs(QuireError):
    def __init__(self, message: str, outputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outputs = list(outputs)


class BatchError(_WithOutputs):
    """Some rows failed while the others finished.

    If a row failed because of its input (a grammar that cannot be followed, a bad prompt of an
    iterator), an InvalidBatch is made: callers expect a ValueError for bad input.
    """

    def __new__(cls, outputs: Sequence[Any], errors: Mapping[int, QuireError]) -> BatchError:
        bad_input = any(isinstance(error, InvalidRequest) for error in errors.values())
        return super().__new__(InvalidBatch if cls is BatchError and bad_input else cls)

    def __init__(self, outputs: Sequence[Any], errors: Mapping[int, QuireError]) -> None:
        first = min(errors)
        rows = "1 row" if len(errors) == 1 else f"{len(errors)} rows"
        super().__init__(
            f"{rows} of {len(outputs)} failed; the first is prompt {first}: "
            f"{str(errors[first]).removeprefix(f'prompt {first}: ')} "
            '(.outputs holds every row, on_error="return" returns them)',
            outputs,
        )
        self.errors = dict(errors)


class InvalidBatch(BatchError, InvalidRequest):
    """At least one row failed for what was passed with it; `parameter`, `value` and `index` are
    those of the first such row."""

    def __init__(self, outputs: Sequence[Any], errors: Mapping[int, QuireError]) -> None:
        super().__init__(outputs, errors)
        for index, error in sorted(errors.items()):
            if isinstance(error, InvalidRequest):
                self.parameter, self.value, self.index = error.parameter, error.value, index
                break


class EngineError(_WithOutputs):
    """The engine cannot go on."""


class NotEnoughMemory(EngineError):
    """Too little memory for the model or for its KV pool."""


class RankDied(EngineError):
    """A rank, a process with a share of the model, died, got stuck or went astray: all ended."""


class JobError(QuireError):
    """A job cannot begin or go on."""


class JobChanged(JobError):
    """What is asked for is not what the job on disk was made from."""


class JobLocked(JobError):
    """Another writer holds the job."""


class JobStopped(JobError):
    """The job stopped before its end; its results are on disk, the same command continues."""


class CorruptJob(JobError):
    """The files of a job contradict themselves."""


class EngineClosed(QuireError):
    """The engine was closed."""


class EngineAsleep(QuireError):
    """The engine sleeps, and its memory is given back; wake_up() brings it back."""


class EngineBusy(QuireError):
    """The engine cannot take this call where it was made."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; .outputs holds the rows that had finished, None for the others."""

    def __init__(self, message: str, outputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outputs = list(outputs)


class QuireWarning(UserWarning):
    """Something was accepted, with a remark."""
