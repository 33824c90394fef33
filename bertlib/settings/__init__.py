"""Flags of the commands: ranges, and rules between them."""
