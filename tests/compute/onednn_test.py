"""Tests of the releases of TensorFlow that have 8-bit products."""

import platform

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bertlib.compute import int8, onednn

pytestmark = pytest.mark.graph


def test_8_bit_products_run_from_the_first_release_on():
  if platform.machine() not in ("x86_64", "AMD64"):
    pytest.skip("the release is of packages for x86")
  minor, first = (
    int(release.split(".")[1])
    for release in (tf.__version__, onednn.FIRST_INT8_RELEASE)
  )
  assert onednn.has_int8_matmul() == (minor >= first)
  random = np.random.RandomState(1)
  inputs = random.randint(-127, 128, [5, 32]).astype(np.int8)
  kernel = random.randint(-63, 64, [32, 16]).astype(np.int8)

  def product():
    with tf.Graph().as_default(), tf.Session() as session:
      quantized = tf.bitcast(tf.constant(inputs), tf.qint8)
      limits, scales = int8.Limits(-1.0, 1.0), np.full([16], 2.0, np.float32)
      arguments = quantized, limits, kernel, scales, tf.zeros([16])
      return session.run(int8.matmul(*arguments))

  if onednn.has_int8_matmul():
    expected = (inputs / 127) @ (kernel / 127 * 2)
    np.testing.assert_allclose(product(), expected, atol=1e-4)
  else:
    with pytest.raises(RuntimeError, match="Unrecognized Op name"):
      product()
