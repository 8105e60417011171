"""Experiments on where a model looks."""
