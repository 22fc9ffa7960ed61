"""How long a step takes: a straight line in what it computes, learned from the steps that ran.

    seconds = fixed + token * tokens + sample * sampled + position * context

`tokens` are computed, `sampled` rows of logits drawn from, `context` is the sum over the
computed tokens of the positions each attends to. Before anything was measured the line comes
from the model's arithmetic and an assumed machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from quire.spec import AnySpec

Doubles = npt.NDArray[np.float64]

# Steps of similar size (within a factor of two in each number) are remembered as one mean, so a
# thousand equal decode steps cannot outweigh the few prefill steps.
MOST_KINDS = 512
MEMORY = 256  # steps in the mean of a kind; older ones fade
# A step this many times slower than its kind was disturbed from outside, and counts as that slow.
DISTURBED = 3.0
# Weight of the assumed proportions, where one observed step weighs its relative error squared: it
# decides what the steps cannot tell apart, and has next to no effect otherwise.
PRIOR_WEIGHT = 1e-3
# Of a machine that was not measured: flops and bytes per second, and bytes of a weight.
ASSUMED_FLOPS, ASSUMED_BYTES, ASSUMED_WEIGHT_BYTES = 1e11, 1e10, 4.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds for a step, and for each token, sampled row and attended position in it."""

    fixed: float
    token: float
    sample: float
    position: float

    def seconds(self, *, steps: int, tokens: int, sampled: int, context: int) -> float:
        """Time of `steps` steps that computed this much in all."""
        return (
            self.fixed * steps
            + self.token * tokens
            + self.sample * sampled
            + self.position * context
        )


def assumed_cost(spec: AnySpec) -> StepCost:
    """The cost of a step on an unmeasured machine: weights read once, and the arithmetic."""
    weights = spec.body_weights + spec.head_weights
    return StepCost(
        fixed=weights * ASSUMED_WEIGHT_BYTES / ASSUMED_BYTES,
        token=spec.flops(tokens=1, context=0, sampled=0) / ASSUMED_FLOPS,
        sample=spec.flops(tokens=0, context=0, sampled=1) / ASSUMED_FLOPS,
        position=spec.flops(tokens=0, context=1, sampled=0) / ASSUMED_FLOPS,
    )


@dataclass(slots=True)
class _Kind:
    """The mean of similar steps: features [1, tokens, sampled, context] and seconds."""

    features: Doubles
    seconds: float
    count: float = 1.0

    def add(self, features: Doubles, seconds: float, steps: int) -> None:
        if self.count >= 3:
            seconds = min(seconds, DISTURBED * self.seconds)
        self.count = min(self.count + steps, MEMORY)
        share = min(1.0, steps / self.count)
        self.features += share * (features - self.features)
        self.seconds += share * (seconds - self.seconds)


class StepTimes:
    """Learns what a step costs; give it every step that ran."""

    def __init__(self, spec: AnySpec) -> None:
        self.assumed = assumed_cost(spec)
        self.num_observed = 0
        self._kinds: dict[tuple[int, int, int], _Kind] = {}
        self._fitted: StepCost | None = self.assumed

    def observe(
        self, tokens: int, sampled: int, context: int, seconds: float, *, steps: int = 1
    ) -> None:
        """A step took `seconds`; or `steps` decode steps together did, with these total numbers."""
        if steps < 1 or tokens < 1 or not 0 < seconds < math.inf:
            return
        features = np.array([1.0, tokens / steps, sampled / steps, context / steps])
        kind = _kind_of(features)
        if kind in self._kinds:
            # Moved to the end, so that the kind seen longest ago comes first.
            self._kinds[kind] = known = self._kinds.pop(kind)
            known.add(features, seconds / steps, steps)
        else:
            if len(self._kinds) >= MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = _Kind(features, seconds / steps, min(steps, MEMORY))
        self.num_observed += steps
        self._fitted = None

    @property
    def cost(self) -> StepCost:
        if self._fitted is None:
            self._fitted = _fit(list(self._kinds.values()), self.assumed)
        return self._fitted

    def describe(self) -> str:
        """Where the numbers come from, in words."""
        if not self.num_observed:
            return "assumed from the model's arithmetic, nothing measured yet"
        return f"fitted to {self.num_observed:,} measured steps"


def _kind_of(features: Doubles) -> tuple[int, int, int]:
    _, tokens, sampled, context = (math.frexp(x)[1] for x in features.tolist())
    return tokens, sampled, context


def _fit(kinds: list[_Kind], assumed: StepCost) -> StepCost:
    """Least squares of the relative errors, no coefficient below zero, outliers weighted down."""
    features = np.array([k.features for k in kinds])
    seconds = np.array([k.seconds for k in kinds])
    weights = np.sqrt([k.count for k in kinds])
    prior = np.array([assumed.fixed, assumed.token, assumed.sample, assumed.position])
    # The assumed machine, scaled to the speed of the real one.
    prior = np.maximum(prior, 1e-15) * np.median(seconds / (features @ prior))
    relative = features * prior / seconds[:, None]  # unknowns: multiples of the prior
    multiples = np.ones(4)
    robust = np.ones(len(kinds))
    for _ in range(4):
        scale = weights * robust
        multiples = _least_squares(
            np.concatenate([relative * scale[:, None], math.sqrt(PRIOR_WEIGHT) * np.eye(4)]),
            np.concatenate([scale, np.full(4, math.sqrt(PRIOR_WEIGHT))]),
        )
        error = np.abs(relative @ multiples - 1.0)
        usual = max(1.5 * float(np.median(error)), 0.05)
        robust = np.sqrt(np.minimum(1.0, usual / np.maximum(error, 1e-12)))
    return StepCost(*(multiples * prior).tolist())


def _least_squares(matrix: Doubles, target: Doubles) -> Doubles:
    """Least squares with no unknown below zero: the best over all choices of which are zero."""
    best, least = np.zeros(matrix.shape[1]), float(target @ target)
    columns = range(matrix.shape[1])
    for count in range(1, matrix.shape[1] + 1):
        for chosen in combinations(columns, count):
            part = matrix[:, chosen]
            found, *_ = np.linalg.lstsq(part, target, rcond=None)
            error = part @ found - target
            if found.min() >= 0 and float(error @ error) < least:
                least = float(error @ error)
                best = np.zeros(matrix.shape[1])
                best[list(chosen)] = found
    return best
