"""What each of several ranks has of a model."""
