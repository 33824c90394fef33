"""Rerankers: the relevance of documents to queries."""
