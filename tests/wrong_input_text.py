"""Wrong input: text that cannot be read, and labels."""

from wrong_input_row import Row

ROWS: list[Row] = []
