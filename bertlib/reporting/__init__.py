"""Checks before a run, its receipt and its report."""
