"""Finds, loads, initializes, converts and compares models."""
