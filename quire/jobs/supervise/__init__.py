"""A running job: its engine, what is in flight, what failed, and when to stop."""
