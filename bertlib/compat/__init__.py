"""Names of TensorFlow 1 on TensorFlow 2: Estimator, tf.contrib, the CRF."""
