"""The real kernels under the real runner, in Triton's interpreter: what test_gpu.py is on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.graphs import DecodePlaces
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import (
    AttentionPlan,
    EmbeddingBranchPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    Rope,
    SparsePlan,
)
from quire.request import Request
from quire.scheduler import repeats
from quire.spec import LayerEmbeddingsPlan, LogitsPlan, ModelSpec
from quire.steps.row_schema import FAILED, RESTS, Column
from quire.weights.load import dummy_weights
from tests.executor.cuda import test_walks as walks
from tests.executor.cuda.mixture import MIXTURE, mixture_weights
from tests.executor.cuda.plain import PlainExecutor, PlainOps, answers
from tests.executor.cuda.test_masks import GUIDED
from tests.executor.cuda.test_masks import run as run_guided
from tests.executor.cuda.test_processors import seldom
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, expected, requests
from tests.executor.harness import told
from tests.specs import small_config

# In the interpreter numpy does the arithmetic, and says so where a GPU goes on with infinity.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def columns_of(num_rows: int) -> DeviceColumns:
    """Rows that are all different: one rests, one is about to be full, two have stop ids."""
    columns = DeviceColumns(num_rows, 8, vocab_size=50, device=DEVICE)
    numbers = torch.arange(num_rows, device=DEVICE)
    columns.ints[Column.FROZEN, :num_rows] = (numbers == 2).long()
    columns.ints[Column.LAST_TOKEN, :num_rows] = numbers + 10
    columns.ints[Column.POSITION, :num_rows] = numbers * 3 % 16
    columns.ints[Column.NUM_OUTPUTS, :num_rows] = numbers
    columns.ints[Column.MIN_TOKENS, :num_rows] = 4  # as many as row 3 has with its next token
    columns.ints[Column.MAX_TOKENS, :num_rows] = torch.where(numbers == 5, 6, 40)
    columns.ints[Column.STOP_IDS, :num_rows] = 21
    columns.ints[Column.STOP_IDS + 3, 1] = 22
    columns.tables[0, :num_rows] = (numbers[:, None] * 8 + torch.arange(8, device=DEVICE)).int()
    return columns


def test_the_ends_of_a_step_are_what_plain_torch_says() -> None:
    from quire.backends.ops import HeadShape
    from quire.executor.cuda.triton_ops import TritonOps

    shape = HeadShape(2, 1, 16, 4, torch.float32)
    rows = torch.tensor([3, 0, 7, 2, 5, 1, 8, 8], dtype=torch.int32, device=DEVICE)
    tokens = torch.tensor([21, 21, 5, 21, 6, 22, 0, 0], device=DEVICE)
    failed = torch.tensor([0, 0, 1, 0, 0, 0, 0, 0], device=DEVICE).bool()
    seen = []
    for make in (TritonOps, PlainOps):
        columns = columns_of(8)  # row 8 rests for ever
        places = DecodePlaces.make(8, 2, columns.resting, DEVICE)
        places.rows.copy_(rows)
        ops = make(columns, frozenset(), shape.block_size)
        fed = ops.feed(places, None)
        live = fed.rows >= 0  # the token and position of a row that rests mean nothing
        before = [fed.token_ids[live], fed.positions[live], fed.next_at[live]]
        before += [fed.slots[0].clone(), fed.rows.clone()]
        ops.accept(places, tokens, failed)
        after = [ops.feed(places, None).rows, places.made[0], places.step, columns.ints]
        seen.append(before + after)
    for ours, plain in zip(*seen, strict=True):
        assert ours.tolist() == plain.tolist()
    assert seen[0][6].tolist() == [21, 21, FAILED, RESTS, 6, 22, RESTS, RESTS]
    # Rows 3 (a stop id), 7 (failed), 5 (full) froze; 0 and 1 are too short to stop.
    assert seen[0][5].tolist() == [-1, 0, -1, -1, -1, 1, -1, -1]


class InterpretedExecutor(PlainExecutor):
    """The kernels of a GPU instead of plain torch."""

    def __post_init__(self) -> None:
        from quire.backends.triton.kernels import TritonKernels
        from quire.executor.cuda.triton_ops import TritonOps

        self.make_kernels, self.make_ops = TritonKernels, TritonOps  # type: ignore[assignment]
        super().__post_init__()


def few(config: EngineConfig) -> list[Request]:
    """A handful of short requests: the interpreter runs some hundred programs a second."""
    return [replace(r, max_tokens=min(r.max_tokens, 4)) for r in requests(PLAIN, count=4)]


@pytest.mark.interpreted
@pytest.mark.parametrize("small_batch", [False, True])
def test_the_kernels_draw_the_tokens_of_the_plain_runner(small_batch: bool) -> None:
    """With the vendor's products and with those of few rows."""
    from quire.executor.cuda.small_batch import SmallBatchPass

    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    executor = InterpretedExecutor(config, SPEC, WEIGHTS)
    if small_batch:
        decoding, model = executor.runner._decoding, executor.runner.model
        few_rows = SmallBatchPass.of(model, SPEC, torch.float32)
        assert few_rows is not None
        decoding._parts = replace(decoding._parts, few_rows=few_rows)
    got = answers(executor, config, few(config))
    wanted = expected(few(config), config)
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.interpreted
def test_processed_rows_draw_the_tokens_of_the_plain_runner() -> None:
    config = small_config(depth=2, max_repeat=4, num_blocks=128, block_size=16)
    asked = [{}, {"top_k": 9, "repetition_penalty": 1.3}, {"temperature": 0.0, "logprobs": 2}]
    shown: dict[str, Any] = {"max_tokens": 6, "processors": (seldom,)}
    made = [replace(one, **shown) for one in requests(asked, count=3)]
    found = answers(InterpretedExecutor(config, SPEC, WEIGHTS), config, made)
    for one, wanted in zip(found, expected(made, config), strict=True):
        assert one.output_ids.tolist() == wanted.output_ids.tolist()
        assert told(one.logprobs)[0] == told(wanted.logprobs)[0]


@pytest.mark.interpreted
def test_layers_of_two_kinds_draw_the_tokens_of_the_plain_runner() -> None:
    """Windows and ropes by layer, norms around the branches, weights of norms in float32, scores
    and logits that are bounded: whatever decode steps know in kernels of their own."""
    norm = NormPlan(1e-5, one_plus=True)
    heads = replace(SPEC.layers[0].attention, qk_norm=norm, softcap=2.0, scale=0.4)
    local = replace(heads, window=8, rope=Rope(50.0, 16))
    mlp = MlpPlan(48, "gelu_tanh")
    layers = tuple(LayerPlan(one, mlp, norm, "both") for one in (local, heads))
    bounded = LogitsPlan(softcap=9.0)
    spec = replace(SPEC, layers=layers, norm=norm, embedding_scale=3.0, logits=bounded)
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    weights = {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    got = answers(InterpretedExecutor(config, spec, dict(weights)), config, few(config)[:2])
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    wanted = answers(LocalExecutor(plain, spec, dict(weights)), plain, few(config)[:2])
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.interpreted
def test_a_mixture_draws_the_tokens_of_the_plain_runner() -> None:
    spec, weights = MIXTURE, mixture_weights()
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    got = answers(InterpretedExecutor(config, spec, dict(weights)), config, few(config)[:2])
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    wanted = answers(LocalExecutor(plain, spec, dict(weights)), plain, few(config)[:2])
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


def check_in_chunks(spec: ModelSpec) -> None:
    """Prompts in chunks of 24 tokens, in blocks that others had; random weights."""
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    weights = {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    config = replace(config, max_num_batched_tokens=24)
    asked = few(config)[1:3]
    got = answers(InterpretedExecutor(config, spec, dict(weights)), config, asked, poisoned=True)
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    wanted = answers(LocalExecutor(plain, spec, dict(weights)), plain, asked)
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.interpreted
def test_latents_are_kept_and_read_by_the_kernels() -> None:
    """In chunks, in blocks that others had."""
    rows = LatentPlan(16, 8, 8, 8, NormPlan(1e-5))
    heads = AttentionPlan(4, 1, 24, 0.25, Rope(100.0, 8), latent=rows)
    spec = replace(SPEC, layers=tuple(replace(one, attention=heads) for one in SPEC.layers))
    check_in_chunks(spec)


STATES: list[StatePlan] = [
    DeltaNetPlan(2, 1, 4, 4, 4, NormPlan(1e-5)),
    MambaPlan(2, 1, 4, 4, 4, NormPlan(1e-5)),
    ConvolutionPlan(8, 3, bias=True),
]


@pytest.mark.interpreted
@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_states_are_kept_and_taken_up_by_the_kernels(state: StatePlan) -> None:
    """In chunks that end within blocks, several tokens a plan, in blocks that others had."""
    first, second = SPEC.layers
    spec = replace(SPEC, layers=(replace(first, state=state), second))
    check_in_chunks(spec)


def alone_with_states() -> ModelSpec:
    """Its heads only say how much room blocks have: no kernel of attention has such."""
    state = MambaPlan(2, 1, 4, 4, 4, NormPlan(1e-5))
    layer = LayerPlan(AttentionPlan(2, 2, 12, 1.0, None), None, SPEC.norm, state=state)
    return replace(SPEC, layers=(layer, layer))


@pytest.mark.interpreted
def test_a_model_that_keeps_states_alone_needs_no_attention() -> None:
    """There is no block table without a window, and no step of attention is planned."""
    spec = alone_with_states()
    assert spec.attentions == ()
    check_in_chunks(spec)


@pytest.mark.interpreted
def test_several_streams_go_through_captured_layers() -> None:
    """With embeddings for single layers, a cutoff, and keys of another layer."""
    norm = NormPlan(1e-5, rounds_last=True)
    first, second = (replace(one.attention, value_norm=1e-5) for one in SPEC.layers)
    branch, mlp = EmbeddingBranchPlan(6, "gelu_tanh"), MlpPlan(48, "gelu_tanh")
    layers = tuple(
        LayerPlan(attention, mlp, norm, "both", embedding=branch)
        for attention, mlp in (
            (first, replace(mlp, sparse=SparsePlan(0.4, 48))),
            (replace(second, kv_from=0), mlp),
        )
    )
    embeddings = LayerEmbeddingsPlan(SPEC.vocab_size - 20, 6, norm)
    streams = StreamsPlan(3, 1, 5)
    spec = replace(SPEC, layers=layers, norm=norm, layer_embeddings=embeddings, streams=streams)
    check_in_chunks(spec)


@pytest.mark.interpreted
def test_the_kernels_draw_by_masks_and_score_named_tokens() -> None:
    """Guided rows, and one that asks for more logprobs than an entry holds."""
    more: dict[str, object] = {"temperature": 0.0, "logprob_token_ids": [3, 150]}
    kinds = [PLAIN[1], GUIDED[2], more]
    plain = small_config(num_blocks=64)
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    local = LocalExecutor(plain, SPEC, dict(WEIGHTS))
    wanted, _ = run_guided(local, plain, kinds, count=3, most=4)
    got, _ = run_guided(InterpretedExecutor(config, SPEC, WEIGHTS), config, kinds, count=3, most=4)
    for one, other in zip(got, wanted, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        assert told(one.logprobs)[0] == told(other.logprobs)[0]


@pytest.mark.interpreted
def test_the_kernels_follow_grammars_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_WASTE", 9.0)
    kinds = [PLAIN[1], *walks.KINDS[2:4]]
    plain = small_config(num_blocks=64)
    local = LocalExecutor(plain, walks.WALKED, dict(walks.WEIGHTS))
    wanted, _ = walks.run(local, plain, kinds, count=3, most=4)
    config = small_config(depth=2, max_repeat=4, num_blocks=64, block_size=16)
    executor = InterpretedExecutor(config, walks.WALKED, walks.WEIGHTS, num_states=128)
    got, seen = walks.run(executor, config, kinds, count=3, most=4)
    walks.check(got, wanted)
    assert seen["walks"] == 2 and seen["long"] and not seen["masked"]


def test_every_kernel_is_warmed_up_without_an_error() -> None:
    from quire.executor.precompile.kernel_calls import Calls

    normed = NormPlan(1e-6)
    spec = SPEC.with_windows(8, None).with_attention(lambda one: replace(one, qk_norm=normed))
    calls = Calls(small_config(block_size=16), spec, DEVICE)
    rows = LatentPlan(16, 8, 8, 8, normed)
    heads = AttentionPlan(4, 1, 24, 0.25, Rope(100.0, 8), latent=rows)
    kept = Calls(small_config(block_size=16), spec.with_attention(lambda _: heads), DEVICE)
    layers = tuple(replace(spec.layers[0], state=state) for state in STATES)
    taken_up = Calls(small_config(block_size=16), replace(spec, layers=layers), DEVICE)
    alone = Calls(small_config(block_size=128), alone_with_states(), DEVICE)
    assert alone.by_heads == []
    with torch.inference_mode():
        for call in (*calls.all(), *calls.later(), *calls.features()):
            call()
        for call in (*kept.all(), *kept.later(), *taken_up.states()):
            call()
        for call in (*alone.all(), *alone.later(), *alone.features()):
            call()
