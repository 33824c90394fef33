"""What a task is: the answers that shared code asks for."""
