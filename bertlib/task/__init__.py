"""Types of a task: the answers that shared code asks for."""
