"""Runs plans on the cores of this machine."""
