"""Measures the machine it runs on, and fits the constants of the cost model to it."""
