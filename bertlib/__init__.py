"""Everything that the commands and the three libraries' users only import."""
