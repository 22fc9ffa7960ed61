"""What a step that ran teaches: how long such steps take, and counters."""

from __future__ import annotations

from quire.plan.times import StepTimes
from quire.session.metrics import Metrics
from quire.step import StepPlan


def observe_step(times: StepTimes, metrics: Metrics, plan: StepPlan, seconds: float) -> None:
    starts = plan.decode.positions.astype("int64")
    context = int(starts.sum() + len(starts)) * plan.most_drawn
    tokens = sampled = len(starts) * plan.most_drawn
    for s in plan.prefill:
        length = len(s.token_ids)
        tokens, sampled = tokens + length, sampled + len(s.sample_into) + s.num_guessed
        context += length * s.start + length * (length + 1) // 2
    if not plan.encode:  # towers take their own time
        times.observe(tokens, sampled, context, seconds, steps=plan.repeat)
    metrics.count_step(tokens, plan.repeat)
