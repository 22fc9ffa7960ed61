"""What makes a family of models: a file each, from the fields of its config to a ModelSpec."""
