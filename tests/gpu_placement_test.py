"""Tests of where a GPU machine computes a training step.

Without a GPU, the operations of each training script are compared with the list
of those that have no GPU kernel, see `golden/list_gpu_kernels.py`. The slow
tests ask TensorFlow, on a real GPU or an emulated one:

    python tests/emulated_gpu.py -m pytest -m slow tests/gpu_placement_test.py

A new script joins by its name in `TASKS`.
"""

import itertools
import pathlib
import re

import pytest
import tensorflow.compat.v1 as tf

from benchmarks import task_models
from benchmarks.task_models import BATCH_SIZE
from bertlib.compat import estimator_api
from bertlib.training import loop

pytestmark = pytest.mark.graph

LIST = pathlib.Path(__file__).parent / "golden" / "without_gpu_kernel.txt"
WITHOUT_KERNEL = {
  name: set(types)
  for name, *types in map(str.split, LIST.read_text().splitlines())
}
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
  "pretraining packed",
  "pretraining electra",
  "reranking listwise",
)
BFLOAT16 = "--precision=bfloat16", "--recompute_activations"
VARIANTS = ("--precision=float32",), BFLOAT16, ("--precision=float16",)
cases = pytest.mark.parametrize(
  ("task", "arguments"), [*zip(TASKS, itertools.cycle(VARIANTS))], ids=str
)


@pytest.fixture
def gpu(monkeypatch):
  """Makes the project see a GPU when it chooses how to compute."""
  found = {"GPU": ["a GPU"]}
  monkeypatch.setattr(
    tf.config, "list_physical_devices", lambda kind=None: found.get(kind, [])
  )


def training_step(task, *arguments):
  arguments += ("--mask_padding",) if task == "squad" else ()
  made = task_models.run_of(task, "--xla=off", *arguments)
  model_fn = loop.model_fn_of(made, num_train_steps=50)
  batch = task_models.random_batch(made.task.features)
  with tf.device("/cpu:0"), tf.name_scope("batch"):
    rows = tf.data.Dataset.from_tensor_slices(batch).repeat()
    batches = rows.batch(BATCH_SIZE, drop_remainder=True).prefetch(1)
    iterator = tf.data.make_initializable_iterator(batches)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
  with tf.name_scope("batch"):
    features = iterator.get_next()
  mode = estimator_api.ModeKeys.TRAIN
  spec = model_fn(features, None, mode, {"batch_size": BATCH_SIZE})
  return [spec.loss, spec.train_op]


def lacks_kernel(node):
  types = {tf.as_dtype(a.type).name for a in node.attr.values() if a.type}
  missing = WITHOUT_KERNEL.get(node.op)
  return missing is not None and (not missing or bool(missing & types))


@pytest.mark.train
@cases
def test_operations_of_a_training_step_have_gpu_kernels(task, arguments, gpu):
  with tf.Graph().as_default() as graph:
    training_step(task, "--gradient_accumulation_steps=2", *arguments)
    graph_def = graph.as_graph_def()
  bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
  nodes = [node for body in bodies for node in body]
  assert [f"{n.name}: {n.op}" for n in nodes if lacks_kernel(n)] == []
  operations = {node.op for node in nodes}
  assert not operations & CALLBACKS
  assert not [op for op in operations if op.startswith(("_", "Xla"))]
  assert any("unpadding" in node.name for node in nodes)


def test_gpu_computes_by_xla_and_without_onednn_by_default(gpu):
  compute = task_models.run_of("ner").compute
  assert compute.unpad and compute.jit_compile and compute.on_gpu
  assert not compute.use_onednn


@pytest.mark.parametrize(("xla", "compiles"), [("auto", False), ("on", True)])
def test_prediction_on_a_gpu_is_compiled_on_request(gpu, xla, compiles):
  made = task_models.run_of("ner", f"--xla={xla}")
  compute = made.compute.for_inference()
  assert compute.jit_compile == compiles


# Why operations stay on the host, by their names.
ON_HOST = {
  r"^batch(_1)?/": "the input pipeline reads and parses records",
  r"(^|/)unpadding(_\d+)?/": "shapes depend on the number of tokens",
  r"loss_scale/good_steps": "GPUs have no int32 variables; one number",
  r"^(Assign|Read)VariableOp": "of that variable",
}
# What makes the tensors that are copied from the GPU within a step.
COPIES = {
  r"^dropout_step$": "the host makes the seeds of dropout: one number",
  r"^IsFinite$": "a float16 step may be skipped: one bool",
  r"^Select_\d$": "the next value of `good_steps`, see above",
  r"/ctrl/": "only an order",
}
COPIES_OF = {
  # Ids of the documents that are there, of which the host finds the padding.
  "reranking listwise": [r"^GatherV2(_\d+)?$"],
  # Indices of the samples: the host computes with int32.
  "pretraining electra": [
    r"^(Cast|GatherV2|UpperBound)(_\d+)?$",
    r"^PadV2/constant_values$",
  ],
}
# Shapes and constants are where their neighbors are.
BESIDE = {"Const", "Identity", "NoOp", "Shape", "Size"}


def unexplained(names, reasons):
  """The names that no reason explains."""
  return {n for n in names if not any(re.search(p, n) for p in reasons)}


@pytest.fixture
def real_gpu():
  if not tf.config.list_physical_devices("GPU"):
    pytest.skip("needs a GPU, or tests/emulated_gpu.py")


def placed(task, *arguments):
  """The nodes of a training step on their devices, and the name of its loss."""
  found = tf.RunMetadata()
  config = tf.ConfigProto(allow_soft_placement=True)
  # Grappler renames operations.
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    outputs = training_step(task, *arguments)
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])
    session.run(tf.local_variables_initializer())
    options = tf.RunOptions(output_partition_graphs=True)
    session.run(outputs, None, options, found)
  nodes = [node for part in found.partition_graphs for node in part.node]
  return nodes, outputs[0].op.name


def copies_from_gpu(nodes):
  """Names of the operations whose results are copied to the host."""
  to_host = {
    node.attr["tensor_name"].s
    for node in nodes
    if node.op == "_HostRecv" or (node.op == "_Recv" and "CPU" in node.device)
  }
  return {
    node.input[0].partition(":")[0]
    for node in nodes
    if node.op == "_Send"
    and "GPU" in node.device
    and node.attr["tensor_name"].s in to_host
  }


@pytest.mark.slow
@cases
def test_tensorflow_places_training_on_the_gpu(task, arguments, real_gpu):
  nodes, loss = placed(task, *arguments)
  on_host = {
    f"{node.name}: {node.op}"
    for node in nodes
    if "CPU" in node.device and node.op not in BESIDE and node.op[0] != "_"
  }
  assert unexplained(on_host, ON_HOST) == set()
  reasons = [*COPIES, *COPIES_OF.get(task, [])]
  assert unexplained(copies_from_gpu(nodes) - {loss}, reasons) == set()
