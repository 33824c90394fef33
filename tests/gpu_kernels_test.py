"""Tests that a GPU can compute the training graphs, without a GPU.

The graph of every training script is compared with the list of the GPU kernels
of this TensorFlow release, see `golden/gpu_kernels/list_kernels.py`. A new
script joins by its name in `TASKS`.
"""

import copy
import dataclasses
import itertools
import pathlib
import re

import pytest
import tensorflow.compat.v1 as tf

from benchmarks import gpu_placement, task_models
from benchmarks.task_models import BATCH_SIZE
from bertlib.compat import estimator_api
from bertlib.data import input_pipeline
from bertlib.training import lifecycle, step_plan

pytestmark = pytest.mark.graph

RELEASE = ".".join(tf.__version__.split(".")[:2])
NEWEST = "2.22"
LISTS = pathlib.Path(__file__).parent / "golden" / "gpu_kernels"

CALLBACKS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
TASKS = (
  "classification weighted",
  "regression",
  "multi_label",
  "multiple_choice",
  "squad",
  "ner",
  "embeddings triplets",
  "embeddings scored_pairs",
  "embeddings labeled_texts",
  "pretraining",
)
PRECISIONS = ("float32", "bfloat16", "float16")
SWITCHES = ("accumulates", "recomputes", "dropout", "unpads", "xla")
CASES = [
  (
    task,
    precision,
    *(bool((3 * row + 11 * column) >> bit & 1) for bit in range(5)),
  )
  for row, task in enumerate(TASKS)
  for column, precision in enumerate(PRECISIONS)
]

# Why operations stay on the host, by their names.
ON_HOST = {
  r"^batch(_1)?/": "the input pipeline reads and parses records",
  r"(^|/)unpadding(_\d+)?/": "shapes depend on the number of tokens",
  r"loss_scale/good_steps": "GPUs have no int32 variables; one number",
  r", beside ": "shapes and constants follow their neighbors",
}
# Why tensors are copied from the GPU within a step: "maker -> reader".
COPIES = {
  r"^dropout_step -> ": "the host makes the seeds of dropout: one number",
  r"^Const_\d+ -> TensorListConcat": "an empty constant, after accumulation",
  r"^IsFinite -> cond/Switch": "a float16 step may be skipped: one bool",
  r" -> AssignVariableOp\w*: .*int32": "`good_steps`, see above: one number",
}


@pytest.fixture
def gpu(monkeypatch):
  """Makes the project see a GPU when it chooses how to compute."""
  monkeypatch.setattr(
    tf.config,
    "list_physical_devices",
    lambda kind=None: ["a GPU"] if kind == "GPU" else [],
  )


@pytest.fixture(scope="module")
def kernels():
  path = LISTS / f"tensorflow-{RELEASE}.json"
  if RELEASE > NEWEST and not path.exists():
    pytest.skip(f"no list of the GPU kernels of TensorFlow {RELEASE} yet")
  return gpu_placement.read_kernels(path)


def batches(layout):
  """Features as Estimator gets them from the dataset of an `input_fn`."""
  batch = task_models.random_batch(layout)
  with tf.device("/cpu:0"), tf.name_scope("batch"):
    rows = tf.data.Dataset.from_tensor_slices(batch).repeat()
    dataset = rows.batch(BATCH_SIZE).map(input_pipeline.trim_padding)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
  with tf.name_scope("batch"):
    iterator = tf.data.make_initializable_iterator(dataset)
    return iterator.get_next()


def training_step(
  task, *arguments, dropout=True, unpads=True, make_batch=batches
):
  """Builds a training step; returns what Estimator asks a session for."""
  made = task_models.run_of(task, *arguments)
  if not dropout:
    config = copy.copy(made.config)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    made = dataclasses.replace(made, config=config)
  if not unpads:
    padded = dataclasses.replace(made.task, masks_padding=False)
    made = dataclasses.replace(made, task=padded)
  model_fn = lifecycle.make_model_fn(made, num_train_steps=50)
  features = make_batch(made.task.features)
  mode = estimator_api.ModeKeys.TRAIN
  spec = model_fn(features, None, mode, {"batch_size": BATCH_SIZE})
  return [spec.loss, spec.train_op]


def unexplained(lines, reasons):
  """The lines that no reason explains."""
  return "\n".join(
    line
    for line in lines
    if not any(re.search(pattern, line) for pattern in reasons)
  )


def copies_of(nodes):
  return [
    f"{maker.name} -> {reader.name}: {maker} -> {reader}"
    for maker, reader in gpu_placement.copies_to_host(nodes)
  ]


def test_cases_combine_any_two_choices():
  for columns in itertools.combinations(zip(*CASES), 2):
    pairs = set(zip(*columns))
    assert len(pairs) == len(set(columns[0])) * len(set(columns[1]))


@pytest.mark.parametrize(("task", "precision", *SWITCHES), CASES, ids=str)
def test_gpu_computes_the_training_step(
  task, precision, accumulates, recomputes, dropout, unpads, xla, gpu, kernels
):
  arguments = [f"--precision={precision}", f"--xla={'on' if xla else 'off'}"]
  arguments += ["--gradient_accumulation_steps=2"] if accumulates else []
  arguments += ["--recompute_activations"] if recomputes else []
  arguments += ["--mask_padding"] if task == "squad" and unpads else []
  with tf.Graph().as_default() as graph:
    outputs = training_step(task, *arguments, dropout=dropout, unpads=unpads)
    nodes = gpu_placement.place(graph, outputs, kernels)
  on_host = [
    f"{node.name}: {node}, {node.why_on_cpu}"
    for node in gpu_placement.on_host(nodes)
  ]
  assert unexplained(on_host, ON_HOST) == ""
  assert unexplained(copies_of(nodes), COPIES) == ""
  assert has_unpadding(nodes) == bool(unpads)
  assert not called_operations(graph) & CALLBACKS
  of_compilers = {n.op for n in nodes.values() if n.op.startswith(("_", "Xla"))}
  assert of_compilers == ({"XlaCluster"} if xla else set())


def has_unpadding(nodes):
  return any("unpadding" in name for name in nodes)


def called_operations(graph):
  """Types of all operations, also of the input pipeline."""
  graph_def = graph.as_graph_def()
  bodies = [f.node_def for f in graph_def.library.function]
  return {node.op for body in [graph_def.node, *bodies] for node in body}


# Choices where there is a GPU


def test_gpu_computes_by_xla_and_without_onednn_by_default(gpu):
  compute = step_plan.read_compute(task_models.run_of("ner").settings)
  assert compute.unpad and compute.jit_compile and compute.on_gpu
  assert not compute.use_onednn


@pytest.mark.parametrize(("xla", "compiles"), [("auto", False), ("on", True)])
def test_prediction_on_a_gpu_is_compiled_on_request(gpu, xla, compiles):
  made = task_models.run_of("ner", f"--xla={xla}")
  compute = step_plan.read_compute(made.settings).for_inference()
  assert compute.jit_compile == compiles


def test_optimizer_on_cpu_leaves_the_weights_on_the_gpu(gpu, kernels):
  with tf.Graph().as_default() as graph:
    outputs = training_step("regression", "--optimizer_on_cpu", "--xla=off")
    moments = {
      v.op.name for v in tf.global_variables() if "/adam_" in v.op.name
    }
    nodes = gpu_placement.place(graph, outputs, kernels)
  on_host = {
    n.name for n in gpu_placement.on_host(nodes) if n.op == "VarHandleOp"
  }
  assert on_host == moments


def test_batch_in_gpu_memory_would_be_copied_back(gpu, kernels):
  """Why input pipelines prefetch batches to host memory only."""

  def on_gpu(layout):
    with tf.device("/gpu:0"):
      return {
        name: tf.placeholder(values.dtype, values.shape, name)
        for name, values in task_models.random_batch(layout).items()
      }

  with tf.Graph().as_default() as graph:
    outputs = training_step("classification weighted", make_batch=on_gpu)
    nodes = gpu_placement.place(graph, outputs, kernels)
  makers = {maker.name for maker, _ in gpu_placement.copies_to_host(nodes)}
  assert {"input_ids", "input_mask", "segment_ids"} < makers


# Placement


def placed(output, kernels):
  return gpu_placement.place(output.graph, [output], kernels)


@pytest.fixture
def vector():
  with tf.Graph().as_default():
    yield tf.placeholder(tf.float32, [4], "vector")


def test_operation_without_gpu_kernel_is_on_the_host(vector, kernels):
  square = tf.square(vector, name="square")
  called = tf.numpy_function(lambda x: x, [square], tf.float32, name="call")
  nodes = placed(tf.identity(called, "result"), kernels)
  assert [n.name for n in gpu_placement.on_host(nodes)] == ["call"]
  assert copies_of(nodes)[0].startswith("square -> call")
  assert len(copies_of(nodes)) == 1  # the result is copied to the GPU


def test_shape_and_constant_are_where_their_neighbor_is(vector, kernels):
  one = tf.placeholder(tf.float32, [None], name="one")
  with tf.device("/cpu:0"):
    total = one + 1.0
  result = tf.fill(tf.size(total, name="size")[tf.newaxis], 2.0, name="result")
  nodes = placed(result, kernels)
  on_host = {n.name for n in gpu_placement.on_host(nodes)}
  assert {"one", "size"} < on_host and "result" not in on_host


def test_shape_of_a_gpu_tensor_is_known_on_the_host(vector, kernels):
  nodes = placed(tf.zeros(tf.shape(vector)), kernels)
  assert copies_of(nodes) == []
  assert gpu_placement.on_host(nodes) == []


def test_int32_is_computed_in_host_memory(vector, kernels):
  total = tf.cast(vector, tf.int32, name="made") + 1
  (copy_,) = copies_of(placed(total, kernels))
  assert copy_.startswith("made -> add")


def test_operation_whose_output_shape_is_a_value_waits(vector, kernels):
  nodes = placed(tf.where(vector > 0, name="selected"), kernels)
  assert copies_of(nodes)[0].startswith("selected -> selected")


def test_copies_in_branches_and_loops_are_found(vector, kernels):
  def body(index, total):
    added = tf.cond(
      index < 2,
      lambda: total + tf.cast(tf.cast(total, tf.int32) * 2, tf.float32),
      lambda: total,
    )
    return index + 1, added

  _, total = tf.while_loop(lambda i, _: i < 3, body, (0, vector))
  (copy_,) = copies_of(placed(total, kernels))
  assert re.search(r"/Cast\S* -> \S*/mul", copy_)


def test_variable_is_where_its_operations_can_be(vector, kernels):
  with tf.variable_scope("", use_resource=True):
    weight = tf.get_variable("weight", [4])
  with tf.device("/cpu:0"):
    update = weight.assign(vector)
  nodes = placed(update.op, kernels)
  assert nodes["weight"].why_on_cpu.startswith("as ")


@pytest.mark.parametrize(
  "path", sorted(LISTS.glob("*.json")), ids=lambda p: p.stem
)
def test_list_of_kernels_has_all_precisions(path):
  """A matrix product in each, and where shapes are."""
  listed = gpu_placement.read_kernels(path)
  types = set(listed["MatMul"][0]["T"].split())
  assert types >= {"float32", "bfloat16", "float16"}
  assert any(row.get("host") == "shape" for row in listed["Reshape"])
