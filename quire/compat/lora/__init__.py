"""Adapters, under the name scripts know."""
