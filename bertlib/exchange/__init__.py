"""Models from and for other libraries, and those that are published."""
