"""One loaded model with its engine, planner and intake: what an LLM holds, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from quire.cache.pool import BlockPool
from quire.engine import Engine
from quire.inputs.answers import AnswerOptions
from quire.inputs.continuations import ContinuationReader
from quire.inputs.prompt import RequestMaker
from quire.options import Options
from quire.plan.lengths import OutputLengths
from quire.plan.plan import Plan
from quire.plan.planner import Planner
from quire.plan.times import StepTimes
from quire.results import Results
from quire.run import Refused, Result, Run, Window
from quire.sampling_params import BeamSearchParams
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.session.beams import BeamCall
from quire.session.collector import nothing_collected
from quire.session.guides import Guides
from quire.session.intake import Intake, Params
from quire.session.loading import LoadedModel, load
from quire.session.processors import RequestProcessors
from quire.session.scoring import ScoreCall
from quire.session.turns import Turns
from quire.session.views import EngineView, KvCacheView, ModelConfigView, SpeculationView
from quire.step import StepPlan

PROBE_ROWS = 16  # prompts run to measure the machine, when nothing ran before


class Session:
    """Everything that lives as long as an LLM."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        config, facts = model.config, model.facts
        self._turns = Turns()
        self._times = StepTimes.of(model.spec)
        self._lengths = OutputLengths()
        pool = BlockPool(
            facts.num_blocks, block_size=config.block_size, caching=config.enable_prefix_caching
        )
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_repeat=config.max_repeat,
            max_wait=config.max_wait,
            prefix_groups=config.prefix_groups,
            speculation=config.speculation,
        )
        self._guides = Guides(
            model.tokenizer,
            vocab_size=model.spec.vocab_size,
            eos_ids=model.eos_ids,
            config=config.structured_outputs,
            handles=model.executor.handles,
        )
        scheduler = Scheduler(
            pool,
            limits,
            expected_output=self._lengths.expected,
            make_masks=self._guides.make_masks,
        )
        self.engine = Engine(
            scheduler, model.executor, depth=config.depth, observe=self._observe_step
        )
        self._planner = Planner(
            config,
            model.spec,
            num_blocks=facts.num_blocks,
            times=self._times,
            lengths=self._lengths,
        )
        self._results = Results(model.tokenizer)
        maker = RequestMaker(
            model.tokenizer,
            vocab_size=model.spec.vocab_size,
            max_model_len=config.max_model_len,
            pool_tokens=facts.num_blocks * config.block_size,
            eos_ids=model.eos_ids,
            more_eos_ids=model.more_eos_ids,
            llm_seed=config.seed,
            max_logprobs=config.max_logprobs,
            processors=RequestProcessors(config, model.spec.vocab_size).of,
            edits_logits=bool(config.batch_processors),
        )
        self.intake = Intake(
            maker,
            model.default_params,
            tokenizer=model.tokenizer,
            lazy_window=4 * scheduler.rows.capacity,
            answers=AnswerOptions(config.reasoning_parser, config.tool_call_parser),
        )

    @classmethod
    def open(cls, model: str, options: Options) -> Session:
        with nothing_collected():
            return cls(load(model, options))

    def turn(self) -> AbstractContextManager[None]:
        return self._turns.turn()

    def run(self, windows: Iterable[Window], between_steps: Callable[[], None]) -> Iterator[Result]:
        """Drive the engine over these windows."""
        return self.new_run(between_steps).outputs(windows)

    def new_run(self, between_steps: Callable[[], None]) -> Run:
        """A run that is yet to be given its windows."""
        return Run(
            self.engine,
            self._planner,
            self._lengths,
            self._results,
            compile_grammar=self._guides.compile,
            between_steps=between_steps,
        )

    def plan(
        self,
        prompts: Any,
        params: Params | None,
        probe: int | None,
        between_steps: Callable[[], None],
    ) -> Plan:
        """The plan of these prompts, after running `probe` of them where that is wanted."""
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

    def beam_call(
        self, prompts: Any, params: BeamSearchParams, concurrency_limit: int | None
    ) -> BeamCall:
        """Prompts to search answers for, read and checked."""
        return BeamCall(
            prompts,
            params,
            concurrency_limit,
            intake=self.intake,
            tokenizer=self.model.tokenizer,
            num_blocks=self.model.facts.num_blocks,
            has_processors=bool(self.model.config.batch_processors),
        )

    def score_call(self, contexts: Any, continuations: Any) -> ScoreCall:
        """Contexts and continuations, read and checked."""
        model = self.model
        reader = ContinuationReader(
            model.tokenizer,
            vocab_size=model.spec.vocab_size,
            max_model_len=model.config.max_model_len,
            pool_tokens=model.facts.num_blocks * model.config.block_size,
        )
        return ScoreCall(reader.read(contexts, continuations))

    def _observe_step(self, plan: StepPlan, seconds: float) -> None:
        starts = plan.decode.positions.astype("int64")
        context = int(starts.sum() + len(starts)) * plan.repeat
        tokens, sampled = len(starts) * plan.repeat, len(starts) * plan.repeat
        for s in plan.prefill:
            length = len(s.token_ids)
            tokens, sampled = tokens + length, sampled + len(s.sample_into) + s.num_guessed
            context += length * s.start + length * (length + 1) // 2
        self._times.observe(tokens, sampled, context, seconds, steps=plan.repeat)

    def view(self) -> EngineView:
        """What scripts read of the engine."""
        model = self.model
        config = ModelConfigView(
            model=model.name,
            tokenizer=model.name,
            max_model_len=model.config.max_model_len,
            dtype=model.config.dtype,
            seed=model.config.seed,
            hf_config=asdict(model.spec),
        )
        guesses = self.engine.scheduler.guesses
        return EngineView(
            config,
            lambda: self.engine.scheduler.num_unfinished,
            SpeculationView(guesses.num_guessed, guesses.num_accepted),
        )

    def kv_cache(self) -> KvCacheView:
        pool = self.engine.scheduler.pool
        return KvCacheView(pool.num_blocks, pool.block_size, pool.peak_used)

    def close(self) -> None:
        if not self._turns.closed:
            self._turns.closed = True
            self.model.executor.close()
            self._guides.close()
