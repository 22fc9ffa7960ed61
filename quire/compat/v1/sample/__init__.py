"""See quire.compat.v1.sample.logits_processor."""
