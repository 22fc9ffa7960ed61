"""Plans run on several ranks, each a process that computes its share of the model."""
