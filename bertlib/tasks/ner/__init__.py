"""Named entities, or other tags of words."""
