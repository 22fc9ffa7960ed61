"""A running job: its engines, the rows they work on, failures, and signals to stop."""
