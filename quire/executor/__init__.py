"""Executors: they compute StepPlans on a device."""
