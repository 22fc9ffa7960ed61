"""The scheduler of a loaded model, and what makes its requests."""

from __future__ import annotations

from quire.cache.pool import BlockPool
from quire.inputs.prompt import RequestMaker
from quire.plan.lengths import OutputLengths
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.session.guides import Guides
from quire.session.loaded_model import LoadedModel
from quire.session.media import SessionMedia
from quire.session.processors import RequestProcessors


def make_scheduler(model: LoadedModel, lengths: OutputLengths, guides: Guides) -> Scheduler:
    config, adapters = model.config, model.adapters
    pool = BlockPool(
        model.facts.num_blocks,
        block_size=config.block_size,
        caching=config.enable_prefix_caching,
        windows=model.facts.windows,
    )
    kept = model.facts.num_blocks * config.block_size  # a few per cent of the KV
    return Scheduler(
        pool,
        Limits.in_engine(config, shelf_rows=kept),
        expected_output=lengths.expected,
        make_masks=guides.make_masks,
        accept_all=guides.accept_all,
        hold_adapter=None if adapters is None else adapters.hold,
    )


def make_maker(model: LoadedModel, media: SessionMedia) -> RequestMaker:
    config = model.config
    return RequestMaker(
        model.tokenizer,
        vocab_size=model.spec.vocab_size,
        max_model_len=config.max_model_len,
        pool_tokens=model.facts.pool_tokens(config.block_size, config.max_model_len),
        eos_ids=model.eos_ids,
        more_eos_ids=model.more_eos_ids,
        llm_seed=config.seed,
        max_logprobs=config.max_logprobs,
        processors=RequestProcessors(config, model.spec.vocab_size).of,
        edits_logits=bool(config.batch_processors),
        media=media.reader,
    )
