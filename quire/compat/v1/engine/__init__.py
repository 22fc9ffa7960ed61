"""The engine, under the name scripts know."""
