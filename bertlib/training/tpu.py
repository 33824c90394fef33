"""What has to be right before a TPU is asked: its address, and the graph.

A TPU compiles a step of training whole, for shapes that are known before it
runs. It tells late, and at length, what it cannot do; here that is one line.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import tensorflow.compat.v1 as tf

from bertlib import estimator_api
from bertlib.errors import InputError
from bertlib.files import is_remote

# The TPU


def find_cluster(
  tpu_name: str | None,
  master: str | None,
  zone: str | None = None,
  project: str | None = None,
  files: Mapping[str, str | None] | None = None,
):
  """Finds a TPU, and makes sure that it answers and can read its files.

  Args:
    tpu_name: of Google Cloud; or its address, grpc://HOST:PORT; or "local" for
      that of this machine.
    master: its address, where there is no name.
    zone: of the name, if not the default.
    project: likewise.
    files: by flag, paths that the TPU itself reads and writes.

  Returns:
    A `TPUClusterResolver`; None where `master` says where it is.

  Raises:
    InputError: no TPU is named, the name is unknown, nothing answers within
      five seconds, this machine has none, or the TPU cannot see a file.
  """
  named = tpu_name or master
  if not named:
    raise InputError(
      "--use_tpu: which one? Give --tpu_name, a name or grpc://HOST:PORT, or"
      " local on the TPU's own machine"
    )
  for flag, path in (files or {}).items():
    if path and not is_remote(path) and not _is_here(named):
      raise InputError(
        f"--{flag}={path}: is on this machine, where the TPU {named} cannot"
        " see it. Give a path in Cloud Storage, gs://BUCKET/..."
      )
  if not tpu_name:
    _await(master)
    return None
  try:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu_name, zone=zone, project=project
    )
    address = cluster.master()
  except Exception as error:  # of the network, a library, credentials, ...
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"--tpu_name={tpu_name}: Google Cloud does not tell where it is"
      f" ({reason}). Off Google Cloud, or without google-api-python-client and"
      " credentials, give its address, grpc://HOST:PORT"
    ) from error
  _await(address)
  return cluster


def _is_here(named: str) -> bool:
  """Whether a TPU, by name or address, shares the files of this machine."""
  hosts = ("localhost", "127.0.0.1", "::1")
  return named == "local" or urlsplit(named).hostname in hosts


def _await(address: str) -> None:
  """Raises unless a TPU may be at an address, or in this machine."""
  if address in ("", "local"):
    with tf.Session("", graph=tf.Graph()) as session:
      if any(of.device_type == "TPU" for of in session.list_devices()):
        return
    raise InputError(
      "--tpu_name=local: TensorFlow sees no TPU in this machine. Run this on a"
      " TPU VM, with the TensorFlow that is made for it"
    )
  if not address.startswith("grpc://"):
    return
  try:
    where = urlsplit(address)
    socket.create_connection((where.hostname, where.port), timeout=5).close()
  except (OSError, ValueError, TypeError) as error:
    raise InputError(
      f"{address}: no TPU answers there ({error}). Is it started, the address"
      " of the form grpc://HOST:PORT, and may this machine connect to it?"
    ) from error


# The graph

_CALLS_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_ON_HOST = "_xla_outside_compilation"  # marks what the host does for a TPU
_ON_TPU = "_tpu_replicate"  # marks what a TPU does

# Their values are known when a graph is compiled, if shapes are.
_KNOWN = ("BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size")


def check_training(model_fn, layout, batch_size: int) -> None:
  """Refuses a step of training that no TPU could take.

  Nothing is compiled or run.

  Args:
    model_fn: made with `use_tpu`.
    layout: of its features, see `tf_records.Layout`.
    batch_size: examples of a TPU core.

  Raises:
    InputError: see `check`.
  """
  with tf.Graph().as_default() as graph:
    batch = {
      name: tf.placeholder(
        tf.float32 if is_float else tf.int32, [batch_size, *shape], name
      )
      for name, (shape, is_float, *_) in layout.items()
    }
    params = {"batch_size": batch_size}
    spec = model_fn(batch, None, estimator_api.ModeKeys.TRAIN, params, None)
    check(graph, [spec.loss.op, spec.train_op])


def check(graph, outputs: Iterable[Any] = ()) -> None:
  """Refuses operations that no TPU has, and shapes that are not known.

  Functions that the graph calls count too. Input pipelines, `host_call` and
  metrics are the host's, and may do what they like.

  Args:
    graph: a `tf.Graph`, or that of a concrete function.
    outputs: operations; what they need is what the TPU does. If empty it is
      what TPUEstimator has marked; in a graph without marks, all of it.

  Raises:
    InputError: there is an operation on strings or one that calls Python, or a
      tensor whose shape depends on values.
  """
  graph_def = graph.as_graph_def(add_shapes=True)
  if outputs:
    names = [operation.name for operation in outputs]
    graph_def = tf.graph_util.extract_sub_graph(graph_def, names)
  nodes = [n for n in graph_def.node if _ON_TPU in n.attr] or graph_def.node
  functions = {f.signature.name: f.node_def for f in graph_def.library.function}
  bodies = list(_bodies(nodes, functions))
  op_defs = _op_defs({node.op for body in bodies for node in body})
  for body in bodies:
    _check_nodes(body, op_defs)


def _bodies(nodes, functions: Mapping[str, Any]) -> Iterator[list[Any]]:
  """What a TPU does: some nodes, and those of each function that is called."""
  waiting, seen = [nodes], set()
  while waiting:
    body = [n for n in waiting.pop() if _ON_HOST not in n.attr]
    yield body
    called = {
      function.name
      for node in body
      for value in node.attr.values()
      for function in (value.func, *value.list.func)
    }
    waiting += [functions[n] for n in sorted(called - seen) if n in functions]
    seen |= called


def _op_defs(names: Iterable[str]) -> dict[str, Any]:
  """TensorFlow's own account of operations, by their kind."""
  nodes = [tf.NodeDef(name=name, op=name) for name in names]
  with tf.Graph().as_default():  # it is not to be had in eager mode
    exported = tf.train.export_meta_graph(graph_def=tf.GraphDef(node=nodes))
  return {of.name: of for of in exported.meta_info_def.stripped_op_list.op}


def _check_nodes(nodes: Iterable[Any], op_defs: Mapping[str, Any]) -> None:
  """Refuses the first of some nodes that a TPU cannot do."""
  known = set()
  for node in nodes:
    what = f"{node.name} ({node.op})"
    if node.op in _CALLS_PYTHON:
      raise InputError(
        f"{what}: a TPU cannot call Python. Do this in the input_fn, or in"
        " TensorFlow's own operations"
      )
    if tf.string.as_datatype_enum in _dtypes(node, op_defs[node.op]):
      raise InputError(
        f"{what}: a TPU has no strings. Do this in the input_fn, or in the"
        " host_call"
      )
    inputs = {name.lstrip("^").partition(":")[0] for name in node.input}
    if node.op in _KNOWN or (inputs and inputs <= known):
      known.add(node.name)
      continue
    for shape in map(tf.TensorShape, node.attr["_output_shapes"].list.shape):
      if not shape.is_fully_defined():
        raise InputError(
          f"{what}: a TPU needs to know the shape beforehand, and this is"
          f" {shape}. Give batches of one size and length (drop_remainder, no"
          " trimming), and weights of 0 in place of a selection"
        )


def _dtypes(node, op_def) -> set[int]:
  """Types of a node's inputs and outputs, as protocol buffers have them."""
  found = set()
  for arg in (*op_def.input_arg, *op_def.output_arg):
    value = node.attr[arg.type_attr or arg.type_list_attr]
    found |= {arg.type, value.type, *value.list.type}
  return found
