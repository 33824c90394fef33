"""Text to ids, TFRecords and batches; readers of each task's files."""
