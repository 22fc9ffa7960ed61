"""The arithmetic a step is made of: what each op means (ops), and who computes it (cpu)."""
