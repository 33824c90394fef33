"""Wrong input: folders, checkpoints, records and our own files."""

from wrong_input_row import Row

ROWS: list[Row] = []
