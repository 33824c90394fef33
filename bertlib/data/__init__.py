"""TFRecords, batches, tables and vocabularies; no task."""
