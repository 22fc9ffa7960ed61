"""LLM: a model ready to generate, with the methods that scripts know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from quire.errors import NotSupported
from quire.inputs.chat import is_conversation, read_template
from quire.inputs.prompt import merge_prompts
from quire.options import Options, parse_options
from quire.options.signature import llm_signature
from quire.outputs import BeamSearchOutput, ContinuationScore, RequestOutput
from quire.params.unknown import explains_unknown_arguments
from quire.plan.plan import Plan
from quire.run import Window
from quire.sampling_params import BeamSearchParams
from quire.session.controls import LLMControls, NotBuiltMethods
from quire.session.gather import OnError, OnResult, UseTqdm, gather, gather_call, raises
from quire.session.interrupts import CtrlC
from quire.session.param_copies import Params
from quire.session.pooling_methods import PoolingMethods
from quire.session.session import Session

if TYPE_CHECKING:
    from quire.session.engine_args import EngineArgs  # a field per option: slow to make


class LLM(PoolingMethods, LLMControls, NotBuiltMethods):
    """A model, ready to generate text for any number of prompts.

    >>> with LLM("smollm2") as llm:
    ...     outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))

    `model` is a Hub id, a directory, a GGUF file or an alias. Options are those of docs/api.md;
    missing ones are chosen for the model and the machine, and notes name them. Use it as a context
    manager, or `close()` it, to free its memory at once.
    """

    def __init__(self, model: str, **options: Any) -> None:
        parsed = parse_options(options)
        self._session = _open(model, parsed, options)
        self._queued: list[Window] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """An LLM with the options that an EngineArgs holds."""
        return cls(**engine_args.given())

    @explains_unknown_arguments
    def generate(
        self,
        prompts: Any = None,
        sampling_params: Params | None = None,
        *,
        use_tqdm: UseTqdm = True,
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
        output)` is called as each result comes. `lora_request` names a LoRA adapter for all
        prompts, or lists one (or None) for each.
        """
        with self._session.turn():
            windows, total = self._session.intake.read(
                merge_prompts(prompts, prompt_token_ids),
                sampling_params,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=raises(on_error),
                adapters=self._session.asked_adapters(lora_request),
                media_options=mm_processor_kwargs,
            )
            return self._gather(windows, total, use_tqdm, on_error, on_result)

    @explains_unknown_arguments
    def chat(
        self,
        messages: Any,
        sampling_params: Params | None = None,
        use_tqdm: UseTqdm = True,
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
        special_tokens_in_messages: bool | None = None,
        priority: Sequence[int] | None = None,
        on_error: OnError = "raise",
        on_result: OnResult | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for conversations: one, or an iterable of them.

        Each is a list of messages {"role": ..., "content": ...}, written out with the model's
        chat template, or with `chat_template` (a template, or the path of one). A special token
        in a message is text, unless `special_tokens_in_messages`.
        """
        with self._session.turn():
            windows, total = self._read_chats(
                messages,
                sampling_params,
                lora_request,
                chat_template,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=raises(on_error),
                media_options=mm_processor_kwargs,
                rendering={
                    "content_format": chat_template_content_format,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": continue_final_message,
                    "tools": tools,
                    "chat_template_kwargs": chat_template_kwargs,
                    "special_tokens_in_messages": special_tokens_in_messages,
                },
            )
            return self._gather(windows, total, use_tqdm, on_error, on_result)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers of each prompt, found and scored as Transformers' beam search does.

        `prompts` is one prompt or a list, as for `generate`. A search keeps `beam_width` beams;
        its `n` best answers come best first. `concurrency_limit` searches run at once, by default
        as many as there is room for.
        """
        with self._session.turn():
            call = self._session.beam_call(prompts, params, concurrency_limit, lora_request)
            return gather_call(self._session.run, call, use_tqdm)

    def score_continuations(
        self,
        contexts: Any,
        continuations: Any,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
    ) -> list[list[ContinuationScore]]:
        """How likely each continuation of each context is: multiple choice without generating.

        `continuations` has a list for each context; contexts and continuations are text or token
        ids. Text is split as lm-eval does: spaces at the end of a context belong to the
        continuation, and both are encoded together. Each context is computed once, however many
        continuations it has. The answers have the shape of `continuations`.
        """
        with self._session.turn():
            call = self._session.score_call(contexts, continuations, lora_request)
            return gather_call(self._session.run, call, use_tqdm)

    def stream(
        self,
        prompts: Any,
        sampling_params: Params | None = None,
        *,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        tokens: bool = False,
        lora_request: Any = None,
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
                adapters=self._session.asked_adapters(lora_request),
            )
            with closing(self._session.run(windows, ctrl_c.check)) as results:
                yield from results

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
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """Check prompts now and run them at `wait_for_completion`; returns their request ids."""
        with self._session.turn():
            windows, _ = self._session.intake.read(
                prompts,
                sampling_params,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=True,
                adapters=self._session.asked_adapters(lora_request),
                media_options=mm_processor_kwargs,
            )
            return self._queue(windows)

    def enqueue_chat(
        self,
        messages: Any,
        sampling_params: Params | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """Like `enqueue`, for conversations as `chat` takes them."""
        with self._session.turn():
            windows, _ = self._read_chats(
                messages,
                sampling_params,
                lora_request,
                chat_template,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
                strict=True,
                media_options=mm_processor_kwargs,
                rendering={
                    "content_format": chat_template_content_format,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": continue_final_message,
                    "tools": tools,
                    "chat_template_kwargs": chat_template_kwargs,
                },
            )
            return self._queue(windows)

    def _read_chats(
        self,
        messages: Any,
        sampling_params: Params | None,
        lora_request: Any,
        chat_template: str | None,
        *,
        rendering: dict[str, Any],
        **asked: Any,
    ) -> tuple[Iterable[Window], int | None]:
        template = None if chat_template is None else read_template(chat_template)
        return self._session.intake.read_chats(
            [messages] if is_conversation(messages) else messages,
            sampling_params,
            adapters=self._session.asked_adapters(lora_request),
            rendering={"chat_template": template, **rendering},
            **asked,
        )

    def _queue(self, windows: Iterable[Window]) -> list[str]:
        queued = [item for window in windows for item in window]
        self._queued.append(queued)
        return [str(item.number) for item in queued]

    def wait_for_completion(
        self, output_type: Any = None, *, use_tqdm: UseTqdm = True
    ) -> list[RequestOutput]:
        """Run everything that was enqueued; outputs in the order of enqueuing."""
        with self._session.turn():
            windows, self._queued = self._queued, []
            total = sum(len(window) for window in windows)
            return self._gather(windows, total, use_tqdm)

    def _gather(
        self,
        windows: Iterable[Window],
        total: int | None,
        use_tqdm: UseTqdm,
        on_error: OnError = "raise",
        on_result: OnResult | None = None,
    ) -> list[RequestOutput]:
        return gather(
            self._session.run,
            windows,
            total,
            use_tqdm=use_tqdm,
            on_error=on_error,
            on_result=on_result,
        )


def _open(model: str, parsed: Options, given: dict[str, Any]) -> Session:
    if parsed.data_parallel_size == 1:
        return Session.open(model, parsed)
    if parsed.enable_lora:
        raise NotSupported(
            f"enable_lora=True with data_parallel_size={parsed.data_parallel_size} is not built. "
            "Leave one of them out; `quire run --lora --replicas` runs an engine with adapters on "
            "each device."
        )
    from quire.replicas.session.session import ReplicaSession

    return ReplicaSession.open_replicas(model, parsed, given)


# Shows every option as if it were written out above: programs read this to know what to pass.
LLM.__init__.__signature__ = llm_signature()  # type: ignore[attr-defined]
