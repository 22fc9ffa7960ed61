"""Makes the parts of a session from a loaded model: its scheduler, request maker and so on."""

from __future__ import annotations

from quire.cache.pool import BlockPool
from quire.families.fields import Fields
from quire.inputs.prompt import RequestMaker
from quire.inputs.thinking import ThoughtReader
from quire.plan.lengths import OutputLengths
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.session.guides import Guides
from quire.session.loaded_model import LoadedModel
from quire.session.media import SessionMedia
from quire.session.processors import RequestProcessors
from quire.spec import ModelSpec


def make_scheduler(model: LoadedModel, lengths: OutputLengths, guides: Guides) -> Scheduler:
    config, adapters = model.config, model.adapters
    pool = BlockPool(
        model.facts.num_blocks,
        block_size=config.block_size,
        caching=config.enable_prefix_caching,
        windows=model.facts.windows,
    )
    # As many rows as the executor has room for, or one for each token of KV: a few per cent of it.
    kept = model.facts.shelf_rows or model.facts.num_blocks * config.block_size
    return Scheduler(
        pool,
        Limits.in_engine(config, shelf_rows=kept),
        expected_output=lengths.expected,
        make_masks=guides.make_masks,
        accept_all=guides.accept_all,
        hold_adapter=None if adapters is None else adapters.hold,
    )


def make_guides(model: LoadedModel) -> Guides:
    return Guides(
        model.tokenizer,
        vocab_size=model.spec.vocab_size,
        eos_ids=model.eos_ids,
        config=model.config.structured_outputs,
        handles=model.executor.handles,
    )


def make_media(model: LoadedModel) -> SessionMedia:
    return SessionMedia(
        model.media,
        model.tokenizer,
        pass_tokens=model.config.max_num_batched_tokens,
        hidden_size=model.spec.hidden_size,
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
        suppressed=suppressed_ids(model),
        thoughts=ThoughtReader(model.tokenizer, config.reasoning_parser, config.reasoning),
    )


def suppressed_ids(model: LoadedModel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(never written, never first): tokens that a model for sounds must not draw. With them it
    would write down noises, or nothing at all."""
    if not isinstance(model.spec, ModelSpec) or not model.spec.heard_rows:
        return (), ()
    said = Fields(model.generation_config, "generation_config.json")
    never, not_first = (
        tuple(token for token in said.ids(key) if token < model.spec.vocab_size)
        for key in ("suppress_tokens", "begin_suppress_tokens")
    )
    return never, not_first
