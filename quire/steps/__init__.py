"""What goes with plans and results: their bytes, and what they name by number."""
