"""Any causal model of Transformers, run on quire's engine: Transformers' code does the arithmetic,
and KV is in quire's blocks. No other room imports Transformers to compute with it."""
