"""Sentence vectors: similarity and search."""
