"""What pooling methods share: making requests, running them, and turning their hidden states into
embeddings, classes and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from quire.errors import InvalidParams, InvalidRequest, NotSupported
from quire.outputs import PoolingRequestOutput, RequestOutput
from quire.params.pooling import PoolingOutput, PoolingParams
from quire.pooling.reading import Made, PoolingReader, TextOptions
from quire.pooling.spec import PLAIN_GENERATOR, TASKS, PoolerSpec, Task
from quire.request import Request
from quire.run import Refused, Window
from quire.session.gather import Call
from quire.session.intake import cut_windows
from quire.session.loaded_model import LoadedModel
from quire.spec import EncoderSpec
from quire.step import Floats

if TYPE_CHECKING:
    from quire.pooling.head import Head

Params = PoolingParams | Sequence[PoolingParams] | None
Output = TypeVar("Output", bound=PoolingRequestOutput[Any])


@dataclass(frozen=True, slots=True)
class CheckedPooling:
    """What is asked about one text, checked already."""

    task: Task
    dimensions: int | None = None
    use_activation: bool | None = None
    skip_cache: bool = False


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """A prompt with what is not part of it: the name of the model's prompt that comes before it
    (None: the usual one), `pair`, a second text to read together with it, and a cache salt."""

    prompt: Any
    prompt_name: str | None = None
    pair: str | None = None
    cache_salt: str = ""


class Pooling:
    def __init__(
        self, spec: PoolerSpec, head: Head | None, reader: PoolingReader, *, vocab_size: int
    ) -> None:
        self.spec, self.reader = spec, reader
        self._head, self._vocab_size = head, vocab_size

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.spec.tasks

    def check(self, task: str) -> Task:
        """The task, if the model has it."""
        for known in TASKS:
            if task == known and known in self.tasks:
                return known
        have = ", ".join(self.tasks) or "none"
        raise NotSupported(
            f"task {task!r}: {self.spec.why_not} Pooling tasks of this model: {have}."
        )

    def asked(self, params: Params, task: Task, count: int) -> list[CheckedPooling]:
        """What is asked about each of `count` texts."""
        if params is None or isinstance(params, PoolingParams):
            return [self._asked(params or PoolingParams(), task)] * count
        if isinstance(params, str) or not isinstance(params, Sequence):
            raise _wrong_params(params)
        if len(params) != count:
            raise InvalidParams(
                f"pooling_params has {len(params)} entries for {count} prompts; give one for all, "
                "or one for each",
                parameter="pooling_params",
                value=len(params),
            )
        return [self._asked(one, task) for one in params]

    def read_one(
        self,
        prompt: Any,
        params: PoolingParams,
        tokenization_kwargs: dict[str, Any] | None,
        number: int,
    ) -> Made:
        """The request of one prompt or PoolingPrompt; its parameters name the task."""
        given = prompt if isinstance(prompt, PoolingPrompt) else PoolingPrompt(prompt)
        task = self.check(task_of(None, params))
        [asked] = self.asked(params, task, 1)
        options = text_options(
            self, tokenization_kwargs, params.truncate_prompt_tokens, given.prompt_name
        )
        if given.pair is not None:
            pair = (given.prompt, given.pair)
            [made] = self.reader.read_pairs([pair], task, options, first_number=number)
        else:
            [made] = self.reader.read(
                [given.prompt], task, options, first_number=number, skip_cache=asked.skip_cache
            )
        if given.cache_salt and isinstance(made, Request):
            return replace(made, cache_salt=given.cache_salt)
        return made

    def _asked(self, params: PoolingParams, task: Task) -> CheckedPooling:
        if not isinstance(params, PoolingParams):
            raise _wrong_params(params)
        params = params.checked_copy()
        if params.task is not None and params.task != task:
            raise InvalidParams(
                f"pooling_params has the task {params.task!r}, and {task!r} is asked for",
                parameter="task",
                value=params.task,
            )
        for name in ("step_tag_id", "returned_token_ids", "extra_kwargs"):
            if getattr(params, name):
                raise NotSupported(f"PoolingParams.{name} is not built: leave it out.")
        if params.dimensions is not None:
            self._check_dimensions(params.dimensions, task)
        skip_cache = bool(params.skip_reading_prefix_cache)
        return CheckedPooling(task, params.dimensions, params.use_activation, skip_cache)

    def _check_dimensions(self, wanted: int, task: Task) -> None:
        allowed, size = self.spec.dimensions, self._head.size if self._head else 0
        if task not in ("embed", "token_embed"):
            why = "dimensions are those of an embedding"
        elif allowed is None:
            why = (
                "this model was not made to be cut (config.json has neither is_matryoshka nor "
                "matryoshka_dimensions; hf_overrides can say so)"
            )
        elif wanted > size:
            why = f"its embeddings have {size} numbers"
        elif allowed and wanted not in allowed:
            why = f"it was made to be cut to {', '.join(map(str, allowed))}"
        else:
            return
        raise InvalidParams(f"dimensions={wanted}: {why}", parameter="dimensions", value=wanted)

    def pooled(self, output: RequestOutput, asked: CheckedPooling) -> Floats | None:
        """The numbers that were asked for, from the hidden states; None if there are no states."""
        states = output.hidden
        if states is None or self._head is None:
            return None
        return self._head.apply(
            asked.task,
            states,
            output.num_prompt_tokens,
            first=output.hidden_from,
            dimensions=asked.dimensions,
            use_activation=asked.use_activation,
        )

    def token_ids(self, output: RequestOutput) -> list[int]:
        """The ids that the tokenizer gave, without token types, which are encoded in them."""
        ids = output.prompt_token_ids or []
        return [token % self._vocab_size for token in ids]

    def request_output(
        self, output: RequestOutput, asked: CheckedPooling
    ) -> PoolingRequestOutput[Any]:
        """The result of one text in the form of `encode`."""
        return self.made(PoolingRequestOutput, tensor_output, output, asked)

    def made(
        self,
        kind: Callable[..., Output],
        make: Callable[[Floats], Any],
        output: RequestOutput,
        asked: CheckedPooling,
    ) -> Output:
        """One result of type `kind`, whose value `make` builds from the numbers."""
        values = self.pooled(output, asked)
        return kind(
            output.request_id,
            None if values is None else make(values),
            self.token_ids(output),
            output.num_cached_tokens or 0,
            output.finished,
            error=output.error,
        )


def tensor_output(values: Floats) -> PoolingOutput:
    """The result of `encode`: a tensor, which scripts stack and move."""
    import torch

    return PoolingOutput(torch.from_numpy(values))


def make_pooling(model: LoadedModel) -> Pooling:
    """The Pooling of a loaded model."""
    spec, config = model.spec, model.config
    pooler = PLAIN_GENERATOR if model.head is None else model.head.spec
    encoder = spec if isinstance(spec, EncoderSpec) else None
    most = model.facts.most_tokens(config.block_size, config.max_model_len)
    tokenizer = model.tokenizer
    # Newer sentence-transformers directories give the longest text only in the tokenizer's config.
    by_tokenizer = tokenizer.model_max_length if tokenizer is not None else None
    with_types = tokenizer is None or tokenizer.gives_types
    reader = PoolingReader(
        tokenizer,
        pooler,
        vocab_size=spec.vocab_size,
        num_types=encoder.num_types if encoder is not None and with_types else 0,
        max_len=min(pooler.max_len or by_tokenizer or most, most),
        whole=encoder is not None,
    )
    return Pooling(pooler, model.head, reader, vocab_size=spec.vocab_size)


class PoolCall(Call[Any]):
    """Texts whose hidden states are made into results as they come."""

    def __init__(
        self,
        made: Sequence[Made],
        asked: Sequence[CheckedPooling],
        finish: Callable[[RequestOutput, CheckedPooling], Any],
        *,
        first_number: int,
        strict: bool,
    ) -> None:
        """`finish` makes a result from an output. `strict`: the first bad prompt raises, before
        any work."""
        self._asked, self._finish = asked, finish
        self._items: Window = []
        for i, one in enumerate(made):
            if isinstance(one, Request):
                self._items.append(one)
            elif strict:
                raise one
            else:
                self._items.append(Refused(first_number + i, one))
        self._done: dict[int, Any] = {}

    @property
    def num_requests(self) -> int:
        return len(self._items)

    def windows(self) -> Iterable[Window]:
        return cut_windows(self._items)

    def keep(self, index: int, output: RequestOutput) -> None:
        """Make the result of an output, and free its hidden states."""
        self._done[index] = self._finish(output, self._asked[index])
        output.drop_hidden()

    def known(self, outputs: Sequence[RequestOutput | None]) -> list[Any]:
        return [self._done.get(i) for i in range(len(outputs))]


def task_of(pooling_task: str | None, params: Params) -> str:
    """The task that is asked for; InvalidRequest if there is none."""
    given = params if not isinstance(params, Sequence) else params[0] if params else None
    task = pooling_task or getattr(given, "task", None)
    if task is None:
        raise InvalidRequest(
            "encode needs pooling_task: 'embed', 'classify', 'token_embed' or 'token_classify'",
            parameter="pooling_task",
        )
    return str(task)


def truncation(given: int | None, params: Params) -> int | None:
    """How many tokens to keep: from the call, or from its parameters if all agree."""
    if params is not None and not isinstance(params, PoolingParams | Sequence):
        raise _wrong_params(params)
    listed = [params] if isinstance(params, PoolingParams) else params or ()
    said = {getattr(one, "truncate_prompt_tokens", None) for one in listed}
    if given is None and len(said) > 1:
        raise InvalidParams(
            "truncate_prompt_tokens differs among the pooling_params; give one for all",
            parameter="truncate_prompt_tokens",
        )
    return given if given is not None else next(iter(said), None)


def text_options(
    pooling: Pooling,
    tokenization_kwargs: dict[str, Any] | None,
    truncate: int | None,
    prompt_name: str | None,
) -> TextOptions:
    prompt = pooling.reader.prompt_named(prompt_name)
    return TextOptions.of(tokenization_kwargs, truncate, prompt)


def _wrong_params(params: Any) -> InvalidParams:
    return InvalidParams(
        f"pooling_params is a PoolingParams or a list of them, not {type(params).__name__}",
        parameter="pooling_params",
        value=params,
    )
