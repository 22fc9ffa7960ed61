"""See quire.v1.sample.logits_processor."""
