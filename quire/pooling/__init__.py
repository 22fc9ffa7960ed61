"""What is made of hidden states: embeddings, classes and scores, as a model's files say."""
