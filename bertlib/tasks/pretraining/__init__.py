"""Masked language models and next sentences."""
