"""A folder per task: examples, records, decoding, scores."""
