"""Named evaluation tasks, with the prompts and metrics of lm-eval 0.4.13."""
