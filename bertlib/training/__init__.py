"""The run of an Estimator: hooks, model selection, devices, memory."""
