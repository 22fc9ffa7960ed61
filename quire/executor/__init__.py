"""Whatever computes a StepPlan."""
