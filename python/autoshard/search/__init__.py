"""Loops over passes, until a plan fits."""
