"""For tests and for looking into a run; nothing of quire itself imports it."""
