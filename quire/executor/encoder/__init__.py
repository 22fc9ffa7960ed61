"""What runs encoders: one pass over whole texts, and nothing that lasts beyond it."""
