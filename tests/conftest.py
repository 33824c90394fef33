"""Costs of tests, and fixtures of several test files."""

import json
import os
import sys

import hypothesis
import pytest
from absl import logging
from made_once import MadeOnce

pytest_plugins = ["pretraining_corpus", "reference_data"]

# Examples may be slow on a busy machine.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


@pytest.fixture(scope="session")
def once(tmp_path_factory):
  """The `MadeOnce` shared by all processes of this pytest run."""
  root = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    root = root.parent
  made = MadeOnce(root)
  yield made
  made.check()


@pytest.fixture(scope="session", autouse=True)
def released_outputs_computed_once():
  """Keeps the outputs of small models that each export compares.

  They depend on the code alone; `edit` of `same_outputs_test.py`, which changes
  it, computes them anew.
  """
  if "tensorflow" not in sys.modules:  # nor does a test export a model
    yield
    return
  from bertlib.export import same_outputs

  compute, found = same_outputs.released_outputs, {}

  def released_outputs(task, description, hidden_act):
    script = task and task.script
    key = json.dumps([script, description, hidden_act], sort_keys=True)
    if key not in found:
      found[key] = compute(task, description, hidden_act)
    return dict(found[key])

  released_outputs.compute = compute
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(same_outputs, "released_outputs", released_outputs)
    yield


@pytest.fixture(scope="module")
def world(once, tmp_path_factory):
  """A copy of the folder that `wrong_input_world` describes."""
  # Imported here: the process that only distributes tests needs no TensorFlow.
  import commands
  import wrong_input_world

  def make(folder):
    wrong_input_world.make(str(folder), commands.in_process)

  return once.copy("world", make, tmp_path_factory.mktemp("world"))


@pytest.fixture
def graph():
  """A fresh graph, the default one of the test."""
  import tensorflow.compat.v1 as tf

  with tf.Graph().as_default() as graph:
    yield graph


@pytest.fixture
def session(graph):
  """A session of the fresh graph."""
  import tensorflow.compat.v1 as tf

  with tf.Session(graph=graph) as session:
    yield session


@pytest.fixture
def log(monkeypatch):
  """Captured log lines, a list."""
  lines = []

  def keep(message, *values):
    lines.append(message % values)

  monkeypatch.setattr(logging, "info", keep)
  return lines


# Every test has one of these marks: its own, or that of its class or module.
COSTS = ("unit", "graph", "train", "process", "slow")


def _cost(item):
  """The closest cost mark of a test, or None.

  A parameter that makes a test slow outdoes the mark of its function.
  """
  for node in reversed(item.listchain()):
    found = [mark.name for mark in node.own_markers if mark.name in COSTS]
    if found:
      return "slow" if "slow" in found else found[0]
  return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Leaves each test its closest cost only, so that `-m` selects by that."""
  costs = [_cost(item) for item in items]
  unmarked = [item.nodeid for item, cost in zip(items, costs) if not cost]
  if unmarked:
    raise pytest.UsageError(f"without one of {COSTS}: {unmarked}")
  for node in {node for item in items for node in item.listchain()}:
    node.own_markers = [
      mark for mark in node.own_markers if mark.name not in COSTS
    ]
  for item, cost in zip(items, costs):
    item.add_marker(cost)


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
  # Imported here: the process that only distributes tests does not need it.
  import tensorflow.compat.v1 as tf

  if request.param == "resource":
    yield request.param
    return
  for behavior in _GRAPH_BEHAVIOR:
    getattr(tf, f"disable_{behavior}")()
  yield request.param
  for behavior in _GRAPH_BEHAVIOR:
    getattr(tf, f"enable_{behavior}")()
