"""What programs for TensorFlow 1 need on TensorFlow 2."""
