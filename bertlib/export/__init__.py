"""SavedModels that take text, and graph code inside TensorFlow 2."""
