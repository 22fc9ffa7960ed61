"""Module names that scripts import: what is behind them is elsewhere."""
