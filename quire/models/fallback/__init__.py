"""Any causal model of Transformers, run on quire's engine: its arithmetic is Transformers' own, its
KV lies in quire's blocks. The only room that imports Transformers to compute with it."""
