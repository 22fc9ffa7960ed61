"""LLM: a model ready to generate, with the methods that scripts know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Self

from quire.errors import BatchError, EngineError, Interrupted, InvalidOption, NotSupported
from quire.inputs.chat import is_conversation, read_template
from quire.inputs.prompt import merge_prompts
from quire.lora.request import LORA_WAY_OUT
from quire.options import EngineArgs, parse_options
from quire.outputs import BeamSearchOutput, ContinuationScore, RequestOutput
from quire.plan.plan import Plan
from quire.run import Result, Window
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.session.beams import BeamCall
from quire.session.intake import Params
from quire.session.interrupts import CtrlC
from quire.session.progress import Progress
from quire.session.scoring import ScoreCall
from quire.session.session import Session
from quire.session.views import EngineView, KvCacheView, NotBuiltMethods

OnError = Literal["raise", "return"]
OnResult = Callable[[int, RequestOutput], object]


class LLM(NotBuiltMethods):
    """A model, ready to generate text for any number of prompts.

    >>> with LLM("smollm2") as llm:
    ...     outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))

    `model` is a Hub id, a directory, a GGUF file or an alias. Options are those of docs/api.md;
    what is not given is chosen from the model and the machine, and said. Use it as a context
    manager, or `close()` it, to free its memory at once.
    """

    def __init__(self, model: str, **options: Any) -> None:
        parsed = parse_options(options)
        self._chat_template = read_template(parsed.chat_template) if parsed.chat_template else None
        self._session = Session.open(model, parsed)
        self._queued: list[Window] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """An LLM with the options that an EngineArgs holds."""
        return cls(**engine_args.given())

    def generate(
        self,
        prompts: Any = None,
        sampling_params: Params | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        prompt_token_ids: Any = None,
        on_error: OnError = "raise",
        on_result: OnResult | None = None,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in their order.

        `prompts` is one prompt (text, token ids, a TextPrompt or TokensPrompt) or any iterable
        of prompts; `sampling_params` one for all or a list with one for each, the model's
        defaults if None. A list is checked whole before any work. With on_error="return" a
        prompt that fails gets an output with finish_reason "error" and its `.error`; with
        "raise" the others still finish, and the error carries their outputs. `on_result(index,
        output)` is called as each result comes.
        """
        _refuse_media(lora_request, mm_processor_kwargs)
        with self._session.turn():
            windows, total = self._session.intake.read(
                merge_prompts(prompts, prompt_token_ids),
                sampling_params,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=_raises(on_error),
            )
            return self._collect(windows, total, use_tqdm, on_error, on_result)

    def chat(
        self,
        messages: Any,
        sampling_params: Params | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        *,
        priority: Sequence[int] | None = None,
        on_error: OnError = "raise",
        on_result: OnResult | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for conversations: one, or an iterable of them.

        Each is a list of messages {"role": ..., "content": ...}, written out with the model's
        chat template, or with `chat_template` (a template, or the path of one).
        """
        _refuse_media(lora_request, mm_processor_kwargs)
        template = self._chat_template if chat_template is None else read_template(chat_template)
        conversations = [messages] if is_conversation(messages) else messages
        with self._session.turn():
            windows, total = self._session.intake.read_chats(
                conversations,
                sampling_params,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=_raises(on_error),
                rendering={
                    "chat_template": template,
                    "content_format": chat_template_content_format,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": continue_final_message,
                    "tools": tools,
                    "chat_template_kwargs": chat_template_kwargs,
                },
            )
            return self._collect(windows, total, use_tqdm, on_error, on_result)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers of each prompt, found and scored as Transformers' beam search does.

        `prompts` is one prompt or a list, as for `generate`. A search keeps `beam_width` beams;
        its `n` best answers come best first. `concurrency_limit` searches run at once, by default
        as many as there is room for.
        """
        _refuse_media(lora_request, None)
        with self._session.turn():
            call = self._session.beam_call(prompts, params, concurrency_limit)
            return call.outputs(self._collect_call(call, use_tqdm, call.count))

    def score_continuations(
        self,
        contexts: Any,
        continuations: Any,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[list[ContinuationScore]]:
        """How likely each continuation of each context is: multiple choice without generating.

        `continuations` has a list for each context; contexts and continuations are text or token
        ids. Text is split as lm-eval does: spaces at the end of a context belong to the
        continuation, and both are encoded together. Each context is computed once, however many
        continuations it has. The answers have the shape of `continuations`.
        """
        with self._session.turn():
            call = self._session.score_call(contexts, continuations)
            return call.scores(self._collect_call(call, use_tqdm))

    def stream(
        self,
        prompts: Any,
        sampling_params: Params | None = None,
        *,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        tokens: bool = False,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Yield (index of the prompt, its output) as each finishes, in bounded memory.

        With `tokens` also as it grows (`output_kind` says how); such an output is not `finished`.
        A prompt that fails is yielded with its `.error`; leaving the loop ends what still runs.
        """
        with self._session.turn(), CtrlC() as ctrl_c:
            windows, _ = self._session.intake.read(
                prompts,
                sampling_params,
                priority=priority,
                watched=tokens,
                tokenization_kwargs=tokenization_kwargs,
            )
            yield from self._session.run(windows, ctrl_c.check)

    def plan(
        self, prompts: Any, sampling_params: Params | None = None, *, probe: int | None = None
    ) -> Plan:
        """What running these prompts would take; `print(plan.explain())` shows it.

        The time is estimated from steps that ran. If none did yet, or `probe` says how many,
        some of the prompts are run first to measure them.
        """
        with self._session.turn(), CtrlC() as ctrl_c:
            return self._session.plan(prompts, sampling_params, probe, ctrl_c.check)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: Params | None = None,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """Check prompts now and run them at `wait_for_completion`; returns their request ids."""
        _refuse_media(lora_request, mm_processor_kwargs)
        with self._session.turn():
            windows, _ = self._session.intake.read(
                prompts,
                sampling_params,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=True,
            )
            queued = [item for window in windows for item in window]
            self._queued.append(queued)
        return [str(item.number) for item in queued]

    def wait_for_completion(
        self, output_type: Any = None, *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[RequestOutput]:
        """Run everything that was enqueued; outputs in the order of enqueuing."""
        with self._session.turn():
            windows, self._queued = self._queued, []
            total = sum(len(window) for window in windows)
            return self._collect(windows, total, use_tqdm, "raise", None)

    def _collect(
        self,
        windows: Iterable[Window],
        total: int | None,
        use_tqdm: bool | Callable[..., Any],
        on_error: OnError,
        on_result: OnResult | None,
    ) -> list[RequestOutput]:
        done: dict[int, RequestOutput] = {}
        try:
            with CtrlC() as ctrl_c, Progress(use_tqdm, total) as progress:
                results: Iterator[Result] = self._session.run(windows, ctrl_c.check)
                for index, output in results:
                    done[index] = output
                    progress.update(output)
                    if on_result is not None:
                        on_result(index, output)
        except KeyboardInterrupt:
            finished = f"{len(done)} of {total if total is not None else 'the'} prompts finished"
            raise Interrupted(f"stopped: {finished}", _in_order(done, total)) from None
        except EngineError as error:
            error.outputs = _in_order(done, total)
            raise
        outputs = [done[i] for i in range(len(done))]
        errors = {i: o.error for i, o in enumerate(outputs) if o.error is not None}
        if errors and on_error == "raise":
            raise BatchError(outputs, errors)
        return outputs

    def _collect_call(
        self,
        call: BeamCall | ScoreCall,
        use_tqdm: bool | Callable[..., Any],
        on_result: OnResult | None = None,
    ) -> list[RequestOutput]:
        """The outputs of a call that makes something else of them, its errors included."""
        try:
            return self._collect(call.windows(), call.num_requests, use_tqdm, "return", on_result)
        except (Interrupted, EngineError) as error:
            error.outputs = list(call.known(error.outputs))
            raise

    def get_tokenizer(self) -> Any:
        """The tokenizer as a `transformers.PreTrainedTokenizerFast`."""
        if self._session.model.tokenizer is None:
            raise NotSupported("there is no tokenizer: the LLM has skip_tokenizer_init=True")
        return self._session.model.tokenizer.hf_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters the model's makers recommend, fresh at each call."""
        return self._session.model.default_params()

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many devices compute together."""
        return 1

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached prefix."""
        with self._session.turn():
            return self._session.engine.scheduler.pool.forget_cache()

    @property
    def llm_engine(self) -> EngineView:
        return self._session.view()

    @property
    def model_config(self) -> Any:
        return self.llm_engine.model_config

    @property
    def kv_cache(self) -> KvCacheView:
        """Size and peak use of the KV cache, in blocks."""
        return self._session.kv_cache()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def close(self) -> None:
        """Free the model's memory. Twice is fine; using the LLM afterwards is not."""
        if session := getattr(self, "_session", None):
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _in_order(done: dict[int, RequestOutput], total: int | None) -> list[RequestOutput | None]:
    """Each finished output at its prompt's place, None where there is none yet."""
    count = max(done, default=-1) + 1 if total is None else total
    return [done.get(i) for i in range(count)]


def _raises(on_error: str) -> bool:
    if on_error not in ("raise", "return"):
        raise InvalidOption(
            f'on_error is "raise" or "return", not {on_error!r}',
            parameter="on_error",
            value=on_error,
        )
    return on_error == "raise"


def _refuse_media(lora_request: Any, mm_processor_kwargs: Any) -> None:
    if lora_request is not None:
        raise NotSupported(LORA_WAY_OUT)
    if mm_processor_kwargs:
        raise NotSupported("images and audio are not built: leave mm_processor_kwargs out.")
