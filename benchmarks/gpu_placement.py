"""Predicts which operations of a graph a GPU computes, without a GPU.

TensorFlow computes an operation on the GPU if it has a GPU kernel for its
types, and else on the host. A kernel declares which of its inputs and outputs
are in host memory, for example shapes, and almost all int32 tensors. So a list
of kernels (`tests/golden/gpu_kernels`) tells both where an operation is
computed and where a tensor is copied from the GPU to the host.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bertlib.training.tpu import op_defs_of

# Kernels that wait for a number from the GPU, for the shape of their output.
_WAITING = {"DynamicPartition", "Unique", "UniqueV2", "Where"}

# Operations that read only the shape of their input: TensorFlow places them
# where the input is.
_OF_SHAPES = {"Rank", "Shape", "ShapeN", "Size"}

_ON_HOST = {tf.resource, tf.string}  # in host memory on every device


@dataclasses.dataclass
class Node:
  """An operation of a graph whose functions are inlined.

  Attributes:
    name: name of the operation; in a function, CALLER/NAME.
    op: type of the operation.
    types: dtypes of each type attribute.
    inputs: (input argument, its dtype, node, output argument) of each tensor
      that it reads.
    near: names of nodes that it must be on one device with.
    device: the device that was asked for; "" for any.
    why_on_cpu: set by `place`; "" for a node on the GPU.
    in_host_memory: set by `place`, the input and output arguments there.
  """

  name: str
  op: str
  types: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  inputs: list[tuple[str, Any, str, str]] = dataclasses.field(
    default_factory=list
  )
  near: list[str] = dataclasses.field(default_factory=list)
  device: str = ""
  why_on_cpu: str = ""
  in_host_memory: frozenset[str] = frozenset()

  def __str__(self):
    names = ",".join(
      f"{name}={'/'.join(t.name for t in types)}"
      for name, types in sorted(self.types.items())
    )
    return f"{self.op}[{names}]"


def read_kernels(path: str) -> dict[str, list[dict[str, str]]]:
  """Reads a list of kernels, see `tests/golden/gpu_kernels`."""
  with open(path) as file:
    return json.load(file)["kernels"]


def place(
  graph: tf.Graph,
  outputs: Iterable[Any],
  kernels: Mapping[str, Sequence[Mapping[str, str]]],
) -> dict[str, Node]:
  """Places the operations that `outputs` depend on, as TensorFlow would.

  Args:
    graph: a graph for one GPU, made on any machine.
    outputs: operations and tensors that a session is asked for.
    kernels: of the TensorFlow release, see `read_kernels`.

  Returns:
    The nodes by name. XLA's clusters are one node each.
  """
  names = [getattr(output, "op", output).name for output in outputs]
  graph_def = tf.graph_util.extract_sub_graph(graph.as_graph_def(), names)
  nodes = {node.name: node for node in _Flattener(graph_def).nodes()}
  for node in nodes.values():
    node.near = [name for name in node.near if name in nodes]
    _choose(node, kernels.get(node.op, ()))
  for group in _groups(nodes):
    on_cpu = next((node for node in group if node.why_on_cpu), None)
    for node in group if on_cpu else ():
      node.why_on_cpu = node.why_on_cpu or f"as {on_cpu.name} ({on_cpu})"
  _follow_neighbors(nodes)
  return nodes


def _follow_neighbors(nodes: Mapping[str, Node]) -> None:
  """Moves what TensorFlow computes where its only neighbor is.

  These are operations without inputs that one other reads, and those that read
  only a shape.
  """
  readers = defaultdict(set)
  for node in nodes.values():
    for _, _, source, _ in node.inputs:
      readers[source].add(node.name)
  for node in nodes.values():
    neighbors = set()
    if node.op in _OF_SHAPES:
      neighbors = {source for _, _, source, _ in node.inputs}
    elif not (node.inputs or node.near or node.device):
      neighbors = readers[node.name]
    if len(neighbors) == 1:
      (neighbor,) = neighbors
      why = nodes[neighbor].why_on_cpu
      node.why_on_cpu = node.why_on_cpu or (why and f"beside {neighbor}")


def _choose(node: Node, rows: Sequence[Mapping[str, str]]) -> None:
  """Chooses the first kernel that takes the types of a node."""
  if "cpu:" in node.device.lower():
    node.why_on_cpu = "asked for"
    return
  if node.op == "XlaCluster":
    return
  for row in rows:
    takes = (
      {dtype.name for dtype in node.types[name]} <= set(row[name].split())
      for name in row
      if name != "host"
    )
    if all(takes):
      node.in_host_memory = frozenset(row.get("host", "").split())
      return
  node.why_on_cpu = "no kernel"


def _groups(nodes: Mapping[str, Node]) -> Iterator[list[Node]]:
  """Nodes that must be on one device: those of one variable, and `near`."""
  neighbors = defaultdict(set)
  for node in nodes.values():
    others = [source for _, dtype, source, _ in node.inputs if _binds(dtype)]
    for other in (*others, *node.near):
      neighbors[node.name].add(other)
      neighbors[other].add(node.name)
  seen = set()
  for start in neighbors:
    group, waiting = [], [start]
    while waiting:
      name = waiting.pop()
      if name not in seen:
        seen.add(name)
        group.append(nodes[name])
        waiting += neighbors[name]
    yield group


def _binds(dtype) -> bool:
  """True for a tensor that must be read on the device where it is made."""
  return dtype == tf.resource or dtype.name.endswith("_ref")


def on_host(nodes: Mapping[str, Node]) -> list[Node]:
  """The nodes that are computed on the host."""
  return [node for node in nodes.values() if node.why_on_cpu]


def copies_to_host(nodes: Mapping[str, Node]) -> list[tuple[Node, Node]]:
  """Tensors that are copied from the GPU to the host.

  Returns:
    (node that makes the tensor, node that reads it). A node that waits for a
    number from the GPU reads its own.
  """
  found = []
  for reader in nodes.values():
    for argument, dtype, source, output in reader.inputs:
      maker = nodes[source]
      is_on_gpu = not (
        maker.why_on_cpu
        or output in maker.in_host_memory
        or dtype.base_dtype in _ON_HOST
      )
      if is_on_gpu and (reader.why_on_cpu or argument in reader.in_host_memory):
        found.append((maker, reader))
    if reader.op in _WAITING and not (
      reader.why_on_cpu or reader.in_host_memory
    ):
      found.append((reader, reader))
  return found


def actual_copies(nodes: Iterable[Any]) -> Iterator[str]:
  """Names of operations whose result TensorFlow copies from the GPU.

  `nodes` are `NodeDef`s of its partition graphs. `_Send` reads memory of its
  device, and `_HostRecv` is in host memory on every device.
  """
  nodes = list(nodes)
  to_host = {
    node.attr["tensor_name"].s
    for node in nodes
    if node.op == "_HostRecv" or (node.op == "_Recv" and "CPU" in node.device)
  }
  for node in nodes:
    is_sent = node.op == "_Send" and "GPU" in node.device
    if is_sent and node.attr["tensor_name"].s in to_host:
      yield node.input[0].partition(":")[0]


class _Flattener:
  """Inlines the functions of a graph, as TensorFlow does before it places.

  Tensors are (node, output argument). The inputs and outputs of a function are
  nodes of their own, of type Identity.
  """

  def __init__(self, graph_def: tf.GraphDef):
    self._main = graph_def.node
    self._functions = {f.signature.name: f for f in graph_def.library.function}
    bodies = [self._main, *(f.node_def for f in self._functions.values())]
    self._op_defs = op_defs_of({node.op for body in bodies for node in body})
    self._nodes = []

  def nodes(self) -> list[Node]:
    """All nodes."""
    self._add_body(self._main, "", {})
    return self._nodes

  def _add_body(self, body, prefix: str, arguments: Mapping[str, str]) -> None:
    """Adds the nodes of a function; `arguments` are nodes by input name."""
    by_name = {node.name: node for node in body}

    def tensor(name: str) -> tuple[str, str]:
      source, *rest = name.split(":")
      if source in arguments:
        return arguments[source], "output"
      made_by = by_name[source]
      index = int(rest[-1]) if rest else 0
      if self._called(made_by):
        return f"{prefix}{source}/output_{index}", "output"
      if len(rest) == 2:
        return prefix + source, rest[0]
      return prefix + source, self._arguments(made_by, "output")[index][0]

    for node in body:
      inputs = [tensor(name) for name in node.input if name[0] != "^"]
      typed = self._arguments(node, "input")
      reads = [(*typed[i], *inputs[i]) for i in range(len(inputs))]
      called = self._called(node)
      if called:
        self._add_call(node, prefix + node.name, called, reads)
        continue
      near = [
        prefix + name.decode().removeprefix("loc:@")
        for name in node.attr["_class"].list.s
      ]
      self._nodes.append(
        Node(
          prefix + node.name,
          "XlaCluster" if _is_cluster(node) else node.op,
          self._types(node),
          reads,
          near,
          node.device,
        )
      )

  def _add_call(self, node, name: str, called: Sequence[str], reads) -> None:
    """Adds the functions that a node calls."""
    is_loop, is_choice = node.op.endswith("While"), node.op.endswith("If")
    if is_choice:
      condition, *reads = reads
      self._nodes.append(Node(f"{name}/Switch", node.op, {}, [condition]))
    sources = [[read[2:]] for read in reads]
    results = [self._results(name, function) for function in called]
    outputs = zip(*results[1:]) if is_loop else zip(*results)
    outputs = [list(tensors) for tensors in outputs]
    if is_loop:
      sources = [a + b for a, b in zip(sources, outputs)]
      outputs = [[(f"{name}/input_{i}", "output")] for i in range(len(reads))]
    for index, (read, tensors) in enumerate(zip(reads, sources)):
      self._add_identity(f"{name}/input_{index}", read[1], tensors)
    dtypes = [dtype for _, dtype in self._arguments(node, "output")]
    for index, (dtype, tensors) in enumerate(zip(dtypes, outputs)):
      self._add_identity(f"{name}/output_{index}", dtype, tensors)
    if is_loop:
      condition = ("input", tf.bool, *results[0][0])
      self._nodes.append(Node(f"{name}/LoopCond", "LoopCond", {}, [condition]))
    for function in called:
      signature = self._functions[function].signature
      self._add_body(
        self._functions[function].node_def,
        f"{name}/{function}/",
        {
          argument.name: f"{name}/input_{index}"
          for index, argument in enumerate(signature.input_arg)
        },
      )

  def _results(self, caller: str, function: str) -> list[tuple[str, str]]:
    """The tensors that a function returns."""
    definition = self._functions[function]
    by_name = {node.name: node for node in definition.node_def}
    inputs = [argument.name for argument in definition.signature.input_arg]
    found = []
    for argument in definition.signature.output_arg:
      source, *rest = definition.ret[argument.name].split(":")
      if not rest:
        found.append((f"{caller}/input_{inputs.index(source)}", "output"))
      elif self._called(by_name[source]):
        found.append(
          (f"{caller}/{function}/{source}/output_{rest[1]}", "output")
        )
      else:
        found.append((f"{caller}/{function}/{source}", rest[0]))
    return found

  def _add_identity(self, name: str, dtype, tensors) -> None:
    inputs = [("input", dtype, *tensor) for tensor in tensors]
    self._nodes.append(Node(name, "Identity", {"T": [dtype]}, inputs))

  def _called(self, node) -> list[str]:
    """Names of the functions that a node calls, conditions of loops first."""
    # The functions of a dataset belong to the input pipeline.
    is_call = node.op.endswith(("If", "PartitionedCall", "While"))
    if not is_call or _is_cluster(node):
      return []
    return [
      node.attr[name].func.name
      for name in ("f", "cond", "body", "then_branch", "else_branch")
      if node.attr[name].func.name in self._functions
    ]

  def _types(self, node) -> dict[str, list[Any]]:
    """Dtypes of the type attributes of a node."""
    found = {}
    for attribute in self._op_defs[node.op].attr:
      value = node.attr[attribute.name]
      if attribute.type == "type":
        found[attribute.name] = [tf.as_dtype(value.type)]
      elif attribute.type == "list(type)":
        found[attribute.name] = [tf.as_dtype(t) for t in value.list.type]
    return found

  def _arguments(self, node, kind: str) -> list[tuple[str, Any]]:
    """Name and dtype of the argument of each input or output of a node."""
    found = []
    op_def = self._op_defs[node.op]
    for arg in op_def.input_arg if kind == "input" else op_def.output_arg:
      if arg.type_list_attr:
        types = node.attr[arg.type_list_attr].list.type
      else:
        types = [arg.type or node.attr[arg.type_attr].type]
        if arg.number_attr:
          types *= node.attr[arg.number_attr].i
      for enum in types:
        # The numbers of reference types are higher by 100.
        dtype = tf.as_dtype(enum + 100 if arg.is_ref else enum)
        found.append((arg.name, dtype))
    return found


def _is_cluster(node) -> bool:
  """True for the call of a function that XLA compiles."""
  return node.attr["_XlaMustCompile"].b
