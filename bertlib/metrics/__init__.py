"""Scores, thresholds and decoding of predictions."""
