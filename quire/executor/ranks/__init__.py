"""Runs plans on several ranks: processes that each compute a share of the model."""
