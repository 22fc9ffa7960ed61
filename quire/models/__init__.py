"""Models: which families there are, and the decoder they are built as."""
