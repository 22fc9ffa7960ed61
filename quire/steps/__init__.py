"""What belongs to plans and results: their form as bytes, and what they name by number."""
