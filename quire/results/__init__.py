"""Turns finished sequences into RequestOutputs."""
