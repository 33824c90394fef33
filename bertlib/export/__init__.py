"""SavedModels that take text, and graph code inside TensorFlow 2."""

from bertlib.cli import tensorflow_log

# Before a program that uses ExportedModel imports TensorFlow.
tensorflow_log.hide_information()
