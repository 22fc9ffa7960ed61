"""The host's share of a call is measured without a model."""

from __future__ import annotations

from benchmarks import host, workloads


def test_a_call_without_a_model_tells_where_the_host_was() -> None:
    found = host.measure(workloads.build("subjects", 0.02), runs=2)
    assert set(found.parts) == {"check", "plan", "schedule", "commit", "outputs"}
    assert 0 < found.before < found.whole
    assert f"{found.rows} prompts" in str(found)


def test_checking_many_prompts_takes_no_loop_over_their_tokens() -> None:
    """It takes some 30 ns a token and 10 us a prompt; loops over tokens took 100 and more."""
    found = host.measure(workloads.build("fewshot", 0.1), runs=3)
    assert found.parts["check"] < 0.1e-6 * found.tokens + 0.1e-3 * found.rows
    assert found.parts["outputs"] < 0.1e-3 * found.rows
