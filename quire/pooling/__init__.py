"""Makes embeddings, classes and scores of hidden states, as a model's files say."""
