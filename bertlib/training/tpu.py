"""TPU discovery and graph checks.

A TPU compiles the whole training step for static shapes, and reports what it
cannot compile late and at length. `check` reports it in one line.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import tensorflow.compat.v1 as tf

from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.io.files import is_remote

# Discovery


def find_cluster(
  tpu_name: str | None,
  master: str | None,
  zone: str | None = None,
  project: str | None = None,
  files: Mapping[str, str | None] | None = None,
):
  """Finds a TPU that answers and can read `files`; None for a `master`."""
  named = tpu_name or master
  if not named:
    raise InputError(
      "--use_tpu: no TPU is named. Give --tpu_name=NAME or"
      " --tpu_name=grpc://HOST:PORT, or --tpu_name=local on a TPU VM"
    )
  # `files` are the paths that the TPU reads and writes, by flag.
  for flag, path in (files or {}).items():
    if path and not is_remote(path) and not _is_local(named):
      raise InputError(
        f"--{flag}={path}: is on this machine, where the TPU {named} cannot"
        " read it. Give a path in Cloud Storage, gs://BUCKET/..."
      )
  if not tpu_name:
    _check_answers(master)
    return None
  try:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu_name, zone=zone, project=project
    )
    address = cluster.master()
  except Exception as error:  # network, missing library, credentials, ...
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"--tpu_name={tpu_name}: its address was not found in Google Cloud"
      f" ({reason}). Outside Google Cloud, or without google-api-python-client"
      " and credentials, give the address, grpc://HOST:PORT"
    ) from error
  _check_answers(address)
  return cluster


def _is_local(named: str) -> bool:
  """True if a TPU, by name or address, is in this machine."""
  hosts = ("localhost", "127.0.0.1", "::1")
  return named == "local" or urlsplit(named).hostname in hosts


def _check_answers(address: str) -> None:
  """Raises InputError if no TPU answers at an address or in this machine."""
  if address in ("", "local"):
    with tf.Session("", graph=tf.Graph()) as session:
      if any(d.device_type == "TPU" for d in session.list_devices()):
        return
    raise InputError(
      "--tpu_name=local: TensorFlow finds no TPU in this machine. Run this on a"
      " TPU VM, with the TensorFlow build for TPUs"
    )
  if not address.startswith("grpc://"):
    return
  try:
    url = urlsplit(address)
    socket.create_connection((url.hostname, url.port), timeout=5).close()
  except (OSError, ValueError, TypeError) as error:
    raise InputError(
      f"{address}: no TPU answers there ({error}). Check that the TPU is"
      " running, that the address has the form grpc://HOST:PORT, and that this"
      " machine may connect to it"
    ) from error


# Graph checks

_CALLS_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_ON_HOST = "_xla_outside_compilation"  # attribute of operations on the host
_ON_TPU = "_tpu_replicate"  # attribute of operations on a TPU

# Operations whose values are known at compile time if shapes are static.
_STATIC = ("BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size")


def check_training(model_fn, layout, batch_size: int) -> None:
  """Refuses a training step that a TPU cannot compile; runs nothing."""
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
  """Refuses operations that TPUs lack, and dynamic shapes."""
  # Without `outputs`, checks what TPUEstimator has marked; in a graph without
  # marks, all operations. Functions that they call are checked too. Input
  # pipelines, `host_call` and metrics run on the host.
  graph_def = graph.as_graph_def(add_shapes=True)
  if outputs:
    names = [operation.name for operation in outputs]
    graph_def = tf.graph_util.extract_sub_graph(graph_def, names)
  nodes = [n for n in graph_def.node if _ON_TPU in n.attr] or graph_def.node
  functions = {f.signature.name: f.node_def for f in graph_def.library.function}
  bodies = list(_bodies(nodes, functions))
  op_defs = op_defs_of({node.op for body in bodies for node in body})
  for body in bodies:
    _check_nodes(body, op_defs)


def _bodies(nodes, functions: Mapping[str, Any]) -> Iterator[list[Any]]:
  """Yields the nodes and those of each function that they call."""
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


def op_defs_of(names: Iterable[str]) -> dict[str, Any]:
  """TensorFlow's `OpDef` of each operation type."""
  nodes = [tf.NodeDef(name=name, op=name) for name in names]
  with tf.Graph().as_default():  # not available in eager mode
    exported = tf.train.export_meta_graph(graph_def=tf.GraphDef(node=nodes))
  return {op.name: op for op in exported.meta_info_def.stripped_op_list.op}


def _check_nodes(nodes: Iterable[Any], op_defs: Mapping[str, Any]) -> None:
  """Raises InputError for the first node that a TPU cannot compile."""
  known = set()
  for node in nodes:
    operation = f"{node.name} ({node.op})"
    if node.op in _CALLS_PYTHON:
      raise InputError(
        f"{operation}: a TPU cannot call Python. Use TensorFlow operations,"
        " or move this to the input_fn"
      )
    if tf.string.as_datatype_enum in _dtypes(node, op_defs[node.op]):
      raise InputError(
        f"{operation}: a TPU has no strings. Move this to the input_fn or the"
        " host_call"
      )
    inputs = {name.lstrip("^").partition(":")[0] for name in node.input}
    if node.op in _STATIC or (inputs and inputs <= known):
      known.add(node.name)
      continue
    for shape in map(tf.TensorShape, node.attr["_output_shapes"].list.shape):
      if not shape.is_fully_defined():
        raise InputError(
          f"{operation}: a TPU needs static shapes, but this one is"
          f" {shape}. Use batches of one size and length (drop_remainder, no"
          " trimming), and weights of 0 instead of a selection"
        )


def _dtypes(node, op_def) -> set[int]:
  """Type enums of a node's inputs and outputs."""
  found = set()
  for arg in (*op_def.input_arg, *op_def.output_arg):
    value = node.attr[arg.type_attr or arg.type_list_attr]
    found |= {arg.type, value.type, *value.list.type}
  return found
