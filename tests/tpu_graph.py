"""Graphs for a TPU, without one: what it could not compile, simulated cores.

A TPU compiles the whole training step for static shapes, and reports what it
cannot compile late and at length. Input pipelines, `host_call` and metrics run
on the host.
"""

import sys

import tensorflow.compat.v1 as tf

CALLS_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
ON_HOST = "_xla_outside_compilation"  # attribute of operations on the host
ON_TPU = "_tpu_replicate"  # attribute of operations on a TPU
# Operations whose values are known at compile time if shapes are static.
STATIC = ("BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size")


def problems(graph, outputs=()):
  """Lines on the operations that `outputs` need, or that TPUEstimator marked.

  Without both, on all operations; and on those of the functions they call.
  """
  graph_def = graph.as_graph_def(add_shapes=True)
  if outputs:
    names = [operation.name for operation in outputs]
    graph_def = tf.graph_util.extract_sub_graph(graph_def, names)
  nodes = [n for n in graph_def.node if ON_TPU in n.attr] or graph_def.node
  functions = {f.signature.name: f.node_def for f in graph_def.library.function}
  found, waiting, seen = [], [nodes], set()
  while waiting:
    body = [n for n in waiting.pop() if ON_HOST not in n.attr]
    found += problems_of(body)
    called = {
      function.name
      for node in body
      for value in node.attr.values()
      for function in (value.func, *value.list.func)
    }
    waiting += [functions[n] for n in sorted(called - seen) if n in functions]
    seen |= called
  return found


def problems_of(nodes):
  op_defs = op_defs_of({node.op for node in nodes})
  known = set()
  for node in nodes:
    operation = f"{node.name} ({node.op})"
    if node.op in CALLS_PYTHON:
      yield f"{operation} calls Python"
    elif tf.string.as_datatype_enum in dtypes(node, op_defs[node.op]):
      yield f"{operation} has strings"
    inputs = {name.lstrip("^").partition(":")[0] for name in node.input}
    if node.op in STATIC or (inputs and inputs <= known):
      known.add(node.name)
      continue
    for shape in map(tf.TensorShape, node.attr["_output_shapes"].list.shape):
      if not shape.is_fully_defined():
        yield f"{operation} has the shape {shape}"


def op_defs_of(names):
  """TensorFlow's `OpDef` of each operation type."""
  nodes = [tf.NodeDef(name=name, op=name) for name in names]
  with tf.Graph().as_default():  # not available in eager mode
    exported = tf.train.export_meta_graph(graph_def=tf.GraphDef(node=nodes))
  return {op.name: op for op in exported.meta_info_def.stripped_op_list.op}


def dtypes(node, op_def):
  """Type enums of a node's inputs and outputs."""
  found = set()
  for arg in (*op_def.input_arg, *op_def.output_arg):
    value = node.attr[arg.type_attr or arg.type_list_attr]
    found |= {arg.type, value.type, *value.list.type}
  return found


def simulate_cores(monkeypatch, num_cores):
  """Makes TPUEstimator build its graph for a TPU with some cores."""
  monkeypatch.setattr(
    sys.modules["tensorflow.python.tpu.tpu_system_metadata"],
    "_query_tpu_system_metadata",
    lambda *args, **kwargs: tf.tpu.experimental.TPUSystemMetadata(
      num_cores=num_cores,
      num_hosts=1,
      num_of_cores_per_host=num_cores,
      topology=None,
      devices=[],
    ),
  )
