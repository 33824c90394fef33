"""Fixtures of several test files."""

import hypothesis
import pytest
import tensorflow.compat.v1 as tf
from absl import logging

pytest_plugins = ["reference_data"]

# No test is about how long an example takes on a busy machine.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


@pytest.fixture
def log(monkeypatch):
  """What is logged, a list of lines."""
  lines = []

  def keep(message, *values):
    lines.append(message % values)

  monkeypatch.setattr(logging, "info", keep)
  return lines


# What `tf.disable_v2_behavior()` turns off for the graphs of this process, but
# for eager execution, which cannot be turned on again.
_GRAPH_BEHAVIOR = (
  "resource_variables",
  "v2_tensorshape",
  "control_flow_v2",
  "tensor_equality",
)


@pytest.fixture(params=["reference", "resource"])
def variables(request):
  """Graphs of TensorFlow 1 with reference variables; those of TensorFlow 2."""
  if request.param == "resource":
    yield request.param
    return
  for behavior in _GRAPH_BEHAVIOR:
    getattr(tf, f"disable_{behavior}")()
  yield request.param
  for behavior in _GRAPH_BEHAVIOR:
    getattr(tf, f"enable_{behavior}")()
