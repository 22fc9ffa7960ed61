"""Named evaluation tasks: questions as data, prompts and metrics as lm-eval 0.4.13 has them."""
