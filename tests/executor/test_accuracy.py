"""What is said about a model's arithmetic, and when that is good enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.backends.choose import kernels_for
from quire.backends.cpu.int8 import Int8Matrix, TorchInt8
from quire.executor.cpu.accuracy import Accuracy, Tally, compare
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from quire.models.weight_parts import Weights
from quire.weights.load import dummy_weights
from tests.executor.test_invariance import loud, spec_of, texts_of

SPEC = spec_of(windows=(None, 40))
GOOD = Accuracy(4000, 0.005, 0.005, 0.955, 0.999)


def built(weights: Weights) -> Decoder:
    shape = head_shape(SPEC, 16, torch.float32)
    kernels = kernels_for("cpu", shape, batch_invariant=False)
    return build_model(SPEC, weights, kernels, shape, max_len=512, tp=TensorParallel())


def wide() -> dict[str, Tensor]:
    return loud(dummy_weights(SPEC, dtype=torch.float32, device="cpu"))


def test_a_model_agrees_with_itself() -> None:
    texts, _ = texts_of(1)
    found = compare(built(wide()), built(wide()), SPEC, texts)
    assert found.num_tokens == sum(len(text) - 1 for text in texts)
    assert abs(found.perplexity) < 1e-6
    assert abs(found.divergence) < 1e-6
    assert found.agreement == found.clear_agreement == 1.0
    assert found.passes


def test_rounding_is_seen() -> None:
    texts, _ = texts_of(1)
    narrow = {n: Int8Matrix.of(w, TorchInt8()) if w.dim() == 2 else w for n, w in wide().items()}
    found = compare(built(wide()), built(narrow), SPEC, texts)
    assert 1e-5 < found.divergence < 0.2
    assert 0.7 < found.agreement < 1.0
    assert found.agreement <= found.clear_agreement


def test_the_figures_are_those_of_the_definition() -> None:
    text = texts_of(1)[0][0]
    other = wide()
    other["norm.weight"] = other["norm.weight"] * 1.3
    exact, changed = built(wide()), built(dict(other))
    found = compare(exact, changed, SPEC, [text])
    # The last norm scales the logits and nothing before them.
    from quire.executor.cpu.accuracy import hidden_states

    with torch.inference_mode():
        logits = exact.logits(hidden_states(exact, SPEC, text)[:-1])
    p, q = logits.log_softmax(-1), (logits * 1.3).log_softmax(-1)
    truth = torch.tensor(text[1:])[:, None]
    assert found.agreement == 1.0
    assert found.divergence == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3)
    surprise = float((p.gather(1, truth) - q.gather(1, truth)).mean())
    assert found.perplexity == pytest.approx(torch.expm1(torch.tensor(surprise)).item(), rel=1e-3)


@pytest.mark.parametrize(
    "worse",
    [{"perplexity": 0.011}, {"divergence": 0.011}, {"agreement": 0.949}, {"clear_agreement": 0.98}],
    ids=lambda worse: next(iter(worse)),
)
def test_each_figure_can_fail_the_gate(worse: dict[str, float]) -> None:
    assert GOOD.passes
    assert not replace(GOOD, **worse).passes


def test_the_figures_are_said() -> None:
    assert GOOD.text == "perplexity +0.5%, 95.5% of choices the same, KL 0.0050 on 4,000 tokens"


def tallied(count: int, *, off: float, wrong: int = 0) -> Tally:
    """`count` predictions among four tokens, of which the rounded model has some too low by
    `off` nats and `wrong` of them another choice."""
    ours = torch.tensor([[2.0, 0.5, 0.0, -1.0]]).repeat(count, 1)
    theirs = ours.clone()
    theirs[::2, 0] -= off
    theirs[:wrong, 1] += 9.0
    tally = Tally()
    chances = ours.log_softmax(-1), theirs.log_softmax(-1)
    tally.add(torch.zeros(count, dtype=torch.int64), *chances)
    return tally


def test_a_verdict_is_sure_when_more_text_would_not_change_it() -> None:
    assert tallied(400, off=0.01).is_sure and tallied(400, off=0.01).accuracy.passes
    assert tallied(100, off=0.0, wrong=40).is_sure
    assert not tallied(100, off=0.0, wrong=40).accuracy.passes
    assert not tallied(20, off=0.01).is_sure  # a share of 20 says little
    assert not tallied(1000, off=0.069).is_sure  # near the limit of the perplexity


def test_few_tokens_are_judged_within_their_error() -> None:
    for few, many in ((128, 4000), (999, 1000)):
        assert replace(GOOD, num_tokens=few, agreement=0.944).passes
        assert not replace(GOOD, num_tokens=many, agreement=0.944).passes
    assert not replace(GOOD, num_tokens=128, agreement=0.90).passes
    assert not replace(GOOD, num_tokens=128, divergence=0.011).passes
