"""Files, text, JSON and locks."""
