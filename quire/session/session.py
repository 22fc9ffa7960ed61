"""One loaded model with its engine, planner and intake: everything that an LLM holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from quire.engine import Engine
from quire.errors import EngineAsleep, InvalidOption, NotSupported
from quire.executor.executor import PARTS
from quire.inputs.answers import AnswerOptions
from quire.inputs.continuations import ContinuationReader
from quire.inputs.given_tokenizer import tokenizer_of
from quire.options import Options
from quire.params.pooling import PoolingParams
from quire.params.rules import whole
from quire.plan.lengths import OutputLengths
from quire.plan.plan import Plan
from quire.plan.planner import Planner
from quire.plan.times import StepTimes
from quire.request import Request
from quire.results.finished import Results
from quire.results.output_pacing import OutputPacing
from quire.run import Refused, Result, Run, Window
from quire.sampling_params import BeamSearchParams
from quire.session.adapters import AskedAdapters, asked_adapters
from quire.session.beams import BeamCall
from quire.session.collector import nothing_collected
from quire.session.hf_config import config_object
from quire.session.intake import Intake
from quire.session.loaded_model import LoadedModel
from quire.session.loading import load
from quire.session.making import make_guides, make_maker, make_media, make_scheduler
from quire.session.metrics import Metric, Metrics, observe_step
from quire.session.param_copies import Params
from quire.session.pooling import make_pooling
from quire.session.scoring import ScoreCall
from quire.session.turns import Turns

if TYPE_CHECKING:
    from torch import Tensor

PROBE_ROWS = 16  # prompts that are run to measure the machine, if nothing ran before


@dataclass(frozen=True, slots=True)
class KvCacheView:
    """The KV cache of an LLM: its size, and the most blocks that were ever used at once."""

    num_blocks: int
    block_size: int
    peak_blocks: int


class Session:
    """Everything that lives as long as an LLM."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        config, facts = model.config, model.facts
        self.turns = Turns()
        self._times = StepTimes(model.spec)
        self._lengths = OutputLengths()
        self._metrics = Metrics(model.name, config.max_model_len)
        self._guides = make_guides(self.model)
        self.engine = Engine(
            make_scheduler(self.model, self._lengths, self._guides),
            model.executor,
            depth=config.depth,
            # Not a method of self: that cycle would keep everything until a full collection.
            observe=partial(observe_step, self._times, self._metrics),
        )
        self._planner = Planner(
            config,
            num_blocks=facts.num_blocks,
            windows=facts.windows,
            times=self._times,
            lengths=self._lengths,
        )
        self._results = Results(model.tokenizer)
        self.pooling = make_pooling(model)
        self.media = make_media(self.model)
        self.intake = Intake(
            make_maker(self.model, self.media),
            model.default_params,
            tokenizer=model.tokenizer,
            lazy_window=4 * self.engine.scheduler.rows.capacity,
            answers=AnswerOptions(config.reasoning_parser, config.tool_call_parser),
            refusal=model.no_text,
        )

    @classmethod
    def open(cls, model: str, options: Options) -> Session:
        if options.data_parallel_size > 1:
            raise NotSupported(
                f"data_parallel_size={options.data_parallel_size}: this is one engine alone. LLM "
                "has replicas, and jobs have them with --replicas."
            )
        with nothing_collected():
            return cls(load(model, options))

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """The tasks that the model supports."""
        writes = ("generate",) if self.model.no_text is None else ()
        hears = ("transcription",) if self.sound_rate is not None else ()
        scores = ("score",) if self.pooling.spec.is_cross_encoder else ()
        return (*writes, *hears, *self.pooling.tasks, *scores)

    @property
    def sound_rate(self) -> int | None:
        """Samples per second of sounds that the model transcribes; None if it transcribes none."""
        return self.media.sound_rate

    def turn(self) -> AbstractContextManager[None]:
        return self.turns.turn()

    def check(self) -> None:
        """Raise if the engine was closed, or made before a fork."""
        self.turns.check()

    def run(
        self, windows: Iterable[Window], between_steps: Callable[[], None]
    ) -> Generator[Result, None, None]:
        """Drive the engine over these windows."""
        return self.new_run(between_steps).outputs(windows, parted=True)

    def new_run(self, between_steps: Callable[[], None], pacing: OutputPacing | None = None) -> Run:
        """A run that has not got its windows yet."""
        return Run(
            self.engine,
            self._planner,
            self._lengths,
            self._results,
            compile_grammar=self._guides.compile,
            prepare_media=partial(self.media.prepare, self.engine.scheduler.media.holds),
            between_steps=between_steps,
            on_finished=self._metrics.count,
            pacing=pacing,
        )

    def plan(
        self,
        prompts: Any,
        params: Params | None,
        probe: int | None,
        between_steps: Callable[[], None],
    ) -> Plan:
        """The plan of these prompts, after running `probe` of them to measure times."""
        if probe is not None:
            probe = whole(InvalidOption, "probe", probe, low=0)
        windows, _ = self.intake.read(prompts, params, strict=True)
        requests = [r for window in windows for r in window if not isinstance(r, Refused)]
        if probe is None:
            probe = 0 if self._times.num_observed else PROBE_ROWS
        if probe > 0 and requests:
            evenly = range(0, len(requests), max(1, len(requests) // probe))
            chosen: Window = []
            chosen += [requests[i] for i in evenly][:probe]
            for _ in self.run([chosen], between_steps):
                pass
        pool = self.engine.scheduler.pool
        cached = [
            len(pool.match(r.prompt_ids, salt=r.cache_salt)) * pool.block_size for r in requests
        ]
        plan = self._planner.plan(requests, cached=cached)
        _ = plan.estimate  # made now, from what is known now
        return plan

    def asked_adapters(self, lora_request: Any) -> AskedAdapters | None:
        """The adapters that a call names; None where it names none."""
        return asked_adapters(lora_request, self.model.adapters)

    def beam_call(
        self,
        prompts: Any,
        params: BeamSearchParams,
        concurrency_limit: int | None,
        lora_request: Any = None,
    ) -> BeamCall:
        """A beam search call for these prompts, read and checked."""
        return BeamCall(
            prompts,
            params,
            concurrency_limit,
            intake=self.intake,
            tokenizer=self.model.tokenizer,
            num_blocks=self.model.facts.num_blocks // len(self.model.facts.windows),
            has_processors=bool(self.model.config.batch_processors),
            adapters=self.asked_adapters(lora_request),
        )

    def score_call(self, contexts: Any, continuations: Any, lora_request: Any = None) -> ScoreCall:
        """A call for scores of these continuations, read and checked."""
        model, config = self.model, self.model.config
        if self.sound_rate is not None:
            raise NotSupported(
                "score_continuations of a model that attends to sounds is not built."
            )
        self.intake.check()
        reader = ContinuationReader(
            model.tokenizer,
            vocab_size=model.spec.vocab_size,
            max_model_len=config.max_model_len,
            pool_tokens=model.facts.pool_tokens(config.block_size, config.max_model_len),
            take_numbers=self.intake.take_numbers,
        )
        adapters = self.asked_adapters(lora_request)
        return ScoreCall(reader.read(contexts, continuations, adapters))

    def read_pooling(
        self,
        prompt: Any,
        params: PoolingParams,
        tokenization_kwargs: dict[str, Any] | None,
        priority: int,
        lora_request: Any = None,
    ) -> Request | Refused:
        """The request of one prompt for hidden states, or why it is refused."""
        number = self.intake.take_numbers(1)
        made = self.pooling.read_one(prompt, params, tokenization_kwargs, number)
        if (adapters := self.asked_adapters(lora_request)) is not None:
            [made] = adapters.onto([made], 0)
        if not isinstance(made, Request):
            return Refused(number, made)
        return replace(made, priority=priority)

    def read_metrics(self) -> list[Metric]:
        """Counters, gauges and histograms since the LLM was made."""
        return self._metrics.read(self.engine.scheduler)

    def kv_cache(self) -> KvCacheView:
        pool = self.engine.scheduler.pool
        return KvCacheView(pool.num_blocks, pool.block_size, pool.peak_used)

    def forget_media(self) -> None:
        """Forget every encoded item."""
        with self.turns.turn(needs_all=False):
            self.engine.scheduler.media.clear()

    def forget_prefixes(self) -> bool:
        """Forget every cached prefix."""
        with self.turns.turn(needs_all=False):
            return self.engine.scheduler.pool.forget_cache()

    @cached_property
    def hf_config(self) -> Any:
        """The model's config as an object with attributes."""
        return config_object(self.model.hf_config, self.model.spec.family)

    def hf_tokenizer(self) -> Any:
        """The tokenizer as an object of Transformers."""
        if self.model.tokenizer is None:
            raise NotSupported("there is no tokenizer: the LLM has skip_tokenizer_init=True")
        return self.model.tokenizer.hf_tokenizer()

    def prepare_grammars(self) -> None:
        """Do now what would block all rows when the first asks for a structured output: it takes a
        second for a vocabulary of 150,000 tokens."""
        if self.model.no_text is None:
            self._guides.prepare()

    def prepare_media(self) -> None:
        """Load the encoder of media now, and encode on other threads from now on: each would block
        all rows for seconds, the second on a CPU for every large image."""
        self.media.encode_aside(self.model.executor)

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Use another tokenizer from now on; caches are cleared."""
        made = tokenizer_of(tokenizer)
        with self.turns.turn(needs_all=False):
            self._guides.close()
            self.model = replace(self.model, tokenizer=made)
            self._guides = make_guides(self.model)
            self.engine.reset(make_scheduler(self.model, self._lengths, self._guides))
            self._results = Results(made)
            self.pooling = make_pooling(self.model)
            self.media.use(made)
            self.intake.use(make_maker(self.model, self.media), made)

    def sleep(self, level: int) -> None:
        """Give memory back; see LLM.sleep."""
        if isinstance(level, bool) or level not in (0, 1, 2):
            raise InvalidOption(
                f"level is 0, 1 or 2, not {level!r}", parameter="level", value=level
            )
        with self.turns.turn(needs_all=False):
            if level == 0:
                self.turns.asleep |= {"scheduling"}
                return
            # Marked first: if a step below fails, wake_up restores everything.
            self.turns.asleep |= {*PARTS}
            self.engine.scheduler.pool.forget_cache()
            self.engine.scheduler.media.clear()
            if level == 2 and self.model.adapters is not None:  # its files are read again
                self.model.adapters.base_changed()
            self.model.executor.sleep(keep_weights=level == 1)

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Wake all parts that sleep, or those in `tags`; see LLM.wake_up."""
        known = (*PARTS, "scheduling")
        is_list = isinstance(tags, Collection) and not isinstance(tags, str)
        if tags is not None and not (is_list and all(tag in known for tag in tags)):
            raise InvalidOption(
                f"tags is None or a list of {', '.join(sorted(known))}, not {tags!r}",
                parameter="tags",
                value=tags,
            )
        wanted = {*known} if tags is None else {*tags}
        with self.turns.turn(needs_all=False):
            for part in PARTS:
                if part in wanted & self.turns.asleep:
                    self.model.executor.wake_up(part)
                    self.turns.asleep -= {part}
            self.turns.asleep -= wanted & {"scheduling"}

    @property
    def is_sleeping(self) -> bool:
        return bool(self.turns.asleep)

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Replace weights by name; caches of the old weights are cleared."""
        with self.turns.turn(needs_all=False):
            if "weights" in self.turns.asleep:
                raise EngineAsleep("the weights sleep: call wake_up(tags=['weights']) first")
            self.engine.scheduler.pool.forget_cache()
            self.engine.scheduler.media.clear()
            if self.model.adapters is not None:
                self.model.adapters.base_changed()
            return self.model.executor.load_weights(named)

    @property
    def num_replicas(self) -> int:
        """How many engines have the whole model each, on one rank or several."""
        return 1

    @property
    def is_closed(self) -> bool:
        return self.turns.closed

    def close(self) -> None:
        if not self.turns.closed:
            self.turns.closed = True
            self.model.executor.close()
            self._guides.close()
            self.media.close()
