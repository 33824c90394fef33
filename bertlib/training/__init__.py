"""The life of a run: steps, hooks, model selection, seeds, memory."""
