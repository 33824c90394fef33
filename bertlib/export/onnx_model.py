"""`OnnxModel`: from texts to predictions without TensorFlow.

Imports NumPy, the tokenizer, the decoding of the task, and ONNX Runtime or
OpenVINO, which compute.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from logging import root as log_root
from typing import Any, NamedTuple

import numpy as np

from bertlib.checkpoints import model_folder
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.export import onnx_folder
from bertlib.export.onnx_graph import INPUT_NAMES, OF_TRANSFORMERS
from bertlib.io import files, json_files, model_files, processes
from bertlib.settings import training
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord

_FIX = "Export the model again"

# The faster engine by processor and file, where that was measured, see
# docs/how_to/onnx.md; ONNX Runtime elsewhere.
_FASTEST = {
  ("AMX", "int8"): "openvino",
  ("VNNI", "int8"): "openvino",
  ("VNNI", "float32"): "openvino",
}

# End of the names of zero points that are of one kernel each.
_ZERO_POINTS = b"/zero_points"

# Kernels that OpenVINO keeps in memory, with 8 bits about eleven for each shape
# of a batch. By default 5,000, which are 2 GB in MiniLM.
_CACHED_KERNELS = 1000


class EncoderOutputs(NamedTuple):
  """Outputs of an encoder for a text."""

  hidden_states: np.ndarray  # float32 [tokens, H], [CLS] and [SEP] too
  pooled: np.ndarray | None = None  # float32 [H]; None without trained pooler


class EncoderPredictor(BatchPredictor):
  """Computes hidden states, for a model without the head of a task."""

  def predict(
    self, texts: Iterable[str | tuple[str, str]]
  ) -> list[EncoderOutputs]:
    """Hidden states of texts or pairs, in order."""
    texts = batch_predictor.validated(
      texts, batch_predictor.is_text_or_pair, "a str, or a pair of str"
    )
    return self.predict_blocks(texts, self._encode, self._decode)

  def _encode(self, texts):
    """The numbers of tokens, and the rows of the texts."""
    _, rows = self.encode_windows(texts)
    return [len(row["input_ids"]) for row in rows], rows

  def _decode(self, num_tokens, outputs):
    for count, output in zip(num_tokens, outputs):
      is_alone = isinstance(output, np.ndarray)
      states, *pooled = [output] if is_alone else output
      yield EncoderOutputs(states[:count], *pooled)


class OnnxModel(BatchPredictor):
  """A model of `export_model.py --format=onnx`.

  Its methods are those of the task's `Predictor`, with the same results; also
  `predict` for `encode`.

  ```python
  model = OnnxModel("output/exported/mrpc_onnx")
  model.predict([("He left.", "He went away.")])[0].label
  ```
  """

  def __new__(cls, folder: str, *arguments: Any, **more: Any):
    """Makes an object of this class and of the task's `BatchPredictor`."""
    path = os.path.join(folder, model_files.DESCRIPTION)
    script = json_files.read(path, {"script?": str}, _FIX).get("script")
    task = more.get("task") or task_record.find(script)
    predictor: type = EncoderPredictor
    if script:
      if not (task and task.predictor):
        raise InputError(
          f"{folder}: is a model of {script}, of which nothing is known here."
          " Give task, the RECORD of its module"
        )
      predictor = task.predictor()
    model = super().__new__(type(cls.__name__, (cls, predictor), {}))
    model.description, model.record = model_folder.check(folder, task), task
    model._open = functools.partial(
      cls, os.path.abspath(folder), *arguments, **more
    )
    return model

  def __reduce__(self):
    """Copies and other processes open the folder again."""
    return self._open, ()

  def __init__(
    self,
    folder: str,
    engine: str = "auto",
    batch_size: int | None = None,
    num_threads: int | None = None,
    precision: str = "float32",
    cache_dir: str | None = None,
    *,
    num_batches: int = 1,
    task: TaskRecord | None = None,
  ):
    """Loads a model.

    Args:
      folder: the `--export_dir` of `export_model.py --format=onnx`.
      engine: "onnxruntime" or "openvino", the package that computes; "auto" for
        the faster one on this processor, if both are installed.
      batch_size: texts per batch; None for about 2048 tokens per batch, or 1024
        if several batches are computed at the same time.
      num_threads: threads that compute; None for one per usable core.
      precision: "float32", or "bfloat16" with OpenVINO: of what is not in 8
        bits.
      cache_dir: folder of models compiled by OpenVINO; None for one beside the
        model file, if that can be written; "" for none.
      num_batches: batches that are computed at the same time and share the
        threads. For many texts, as many as threads is fastest; for a few, 1.
      task: `RECORD` of a task of your own.

    Raises:
      InputError: the folder is no export, the package is not installed, or an
        argument is not one of those.
    """
    del task  # used by `__new__`
    description = self.description
    config = model_folder.read_config(os.path.join(folder, model_files.CONFIG))
    path = onnx_folder.find(folder)
    onnx_folder.check(path, description)
    if engine not in ("auto", *_ENGINES):
      raise InputError(
        f"engine={engine!r}: is not one of auto, {', '.join(_ENGINES)}"
      )
    engine = _find_engine(engine, path, precision)
    if precision not in _ENGINES[engine].precisions:
      raise InputError(
        f"precision={precision!r}: is not one of"
        f" {', '.join(_ENGINES[engine].precisions)} with {engine}"
      )
    training.check_prediction(
      batch_size=batch_size, num_threads=num_threads, num_batches=num_batches
    )
    beside_it = os.path.dirname(path)
    if cache_dir is None and os.access(beside_it, os.W_OK):
      cache_dir = os.path.join(beside_it, onnx_folder.CACHE)
    threads = num_threads or processes.usable_cores()
    num_batches = min(num_batches, threads)
    self._engine = _start_engine(
      engine,
      path,
      _EngineSettings(
        num_threads, num_batches, precision, cache_dir, self.extra_outputs
      ),
    )
    if num_batches > 1:
      self.tokens_per_batch = 1024  # their hidden states share the caches
    self._computation = engine, precision, threads, num_batches
    super().__init__(
      folder,
      description,
      config,
      batch_size,
      description.get("seq_length") or self._engine.length_unit,
      num_batches,
      checks_case=False,
    )

  def fingerprint(self) -> str:
    """SHA-256 of what decides the answers: files, engine and processor."""
    engine, *_ = self._computation
    decisive = *self._computation, processes.kind()
    found = hashlib.sha256(repr(decisive).encode())
    found.update(importlib.import_module(engine).__version__.encode())
    names = model_files.COMPANIONS  # but for some, by its tokenizer
    paths = [os.path.join(self._model_dir, name) for name in names]
    paths = [*filter(os.path.exists, paths), onnx_folder.find(self._model_dir)]
    for path in paths:
      with open(path, "rb") as file:
        while part := file.read(2**20):
          found.update(part)
    return found.hexdigest()

  def _compute(self, *arrays):
    """See base class; of several outputs, a tuple for each row."""
    inputs = {
      INPUT_NAMES.get(name, name): array.astype(np.int64)
      for name, array in zip(self.features, arrays)
    }
    if self.config["type_vocab_size"] < 2:
      inputs.pop(INPUT_NAMES["segment_ids"], None)
    outputs = self._engine.run(inputs)
    return outputs[0] if len(outputs) == 1 else zip(*outputs)


class _EngineSettings(NamedTuple):
  """Settings of an engine, which decide how it computes."""

  num_threads: int | None
  num_batches: int
  precision: str
  cache_dir: str | None
  extra_outputs: Sequence[str]


class _OnnxRuntime:
  """A model in ONNX Runtime."""

  precisions = ("float32",)
  length_unit = 1  # padding only costs

  def __init__(self, onnxruntime, path, settings: _EngineSettings):
    options = onnxruntime.SessionOptions()
    # Its own default is one thread per core of the machine, bound to it.
    num_threads = settings.num_threads or processes.usable_cores()
    options.intra_op_num_threads = num_threads // settings.num_batches
    # Exact sums of 8-bit products. With VNNI they are exact without it, in two
    # thirds of the time. Files of earlier versions do not load with it.
    if processes.kind() == "AVX2" and _begins_with(path, _ZERO_POINTS):
      options.add_session_config_entry("session.x64quantprecision", "1")
    self._session = onnxruntime.InferenceSession(
      path, options, providers=["CPUExecutionProvider"]
    )
    names = [x.name for x in self._session.get_outputs()]
    self._outputs = _own(names, settings.extra_outputs)

  def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a batch."""
    return self._session.run(self._outputs, inputs)


class _OpenVino:
  """A model in OpenVINO."""

  precisions = ("float32", "bfloat16")
  # It compiles once for each length, which takes about 10 ms.
  length_unit = 8

  def __init__(self, openvino, path, settings: _EngineSettings):
    precision = settings.precision
    self._path, self._extra_outputs = path, settings.extra_outputs
    self._properties: dict[str, Any] = {
      "PERFORMANCE_HINT": "LATENCY",
      "INFERENCE_PRECISION_HINT": "f32" if precision == "float32" else "bf16",
      "CPU_RUNTIME_CACHE_CAPACITY": _CACHED_KERNELS,
    }
    if settings.num_threads:
      self._properties["INFERENCE_NUM_THREADS"] = settings.num_threads
    if settings.num_batches > 1:
      self._properties["NUM_STREAMS"] = settings.num_batches
    self._core = openvino.Core()
    # OpenVINO 2026.4 makes a table of dtypes when they are first asked for: two
    # threads that do so at once may wait for each other forever.
    openvino.Type.f32.to_dtype()
    can = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision == "bfloat16" and "BF16" not in can:
      logging.warning(
        "precision='bfloat16': this processor has no instructions for it;"
        " OpenVINO computes in float32"
      )
    if settings.cache_dir:
      self._model = self._compiled(openvino.__version__, settings.cache_dir)
    else:
      self._model = self._compile()
    self._requests: list[Any] = []  # free ones; each serves one thread

  def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a batch."""
    try:
      request = self._requests.pop()
    except IndexError:
      request = self._model.create_infer_request()
    try:
      return list(request.infer(inputs, share_inputs=True).values())
    finally:
      self._requests.append(request)

  def _compile(self) -> Any:
    """The compiled model, with our outputs alone: others take time."""
    model = self._core.read_model(self._path)
    results = {
      output.any_name: result
      for output, result in zip(model.outputs, model.get_results())
    }
    for name in results.keys() - _own([*results], self._extra_outputs):
      model.remove_result(results[name])
    return self._core.compile_model(model, "CPU", self._properties)

  def _compiled(self, version: str, cache_dir: str) -> Any:
    """The compiled model, kept in a folder for the next process."""
    # OpenVINO's own cache takes a file of the same size and second for the same
    # model, and processes that fill it at once can crash.
    path, properties = self._path, self._properties
    with open(path, "rb") as file:
      model_hash = hashlib.sha256(file.read()).hexdigest()
    device = self._core.get_property("CPU", "FULL_DEVICE_NAME")
    key = repr((version, device, properties, *self._extra_outputs)).encode()
    name = f"{model_hash}-{hashlib.sha256(key).hexdigest()[:16]}.blob"
    kept = os.path.join(cache_dir, name)
    with contextlib.suppress(OSError, RuntimeError), open(kept, "rb") as file:
      return self._core.import_model(file.read(), "CPU", properties)
    model = self._compile()
    try:
      os.makedirs(cache_dir, exist_ok=True)
      with files.atomic_write(kept, "wb") as file:
        file.write(model.export_model().read())
      # In the folder of the model, others are of what it was before.
      if os.path.dirname(cache_dir) == os.path.dirname(path):
        for other in os.listdir(cache_dir):
          is_ours = re.fullmatch(r"[0-9a-f]{64}-[0-9a-f]{16}\.blob", other)
          if is_ours and not other.startswith(model_hash):
            os.remove(os.path.join(cache_dir, other))
    except (OSError, InputError) as error:
      logging.warning("%s: is not kept compiled (%s)", path, error)
    return model


def _own(outputs: list[str], extra: Iterable[str]) -> list[str]:
  """Names of outputs; of those for transformers, which take time, `extra`."""
  unused = {*OF_TRANSFORMERS} - {*extra}
  first, *others = outputs
  return [first, *(name for name in others if name not in unused)]


_ENGINES = {"onnxruntime": _OnnxRuntime, "openvino": _OpenVino}


def _begins_with(path: str, name: bytes) -> bool:
  """True if a name is among the operations, with which a file begins."""
  with open(path, "rb") as file:
    return name in file.read(2**20)


def _find_engine(engine: str, path: str, precision: str) -> str:
  """The named engine or, for "auto", the fastest one that is installed."""
  is_int8 = _begins_with(path, b"DequantizeLinear")
  kind, number_format = processes.kind(), "int8" if is_int8 else "float32"
  if engine == "auto":
    fastest = _FASTEST.get((kind, number_format), "onnxruntime")
    able = [name for name in _ENGINES if precision in _ENGINES[name].precisions]
    engine = min(
      able,
      key=lambda name: (not importlib.util.find_spec(name), name != fastest),
      default="onnxruntime",
    )
    logging.info("%s: in %s, by %s on %s", path, number_format, engine, kind)
  is_exact = engine == "onnxruntime" and _begins_with(path, _ZERO_POINTS)
  if is_int8 and kind == "AVX2" and not is_exact:
    logging.warning(
      "%s: sums of 8-bit products overflow in %s on this processor, so results"
      " are less accurate. Use engine='onnxruntime' and an export of version"
      " 0.23 or later, or an export in float32",
      path,
      engine,
    )
  return engine


def _start_engine(
  engine: str, path: str, settings: _EngineSettings
) -> _OnnxRuntime | _OpenVino:
  """Loads a model file in an engine; InputError if that is not possible."""
  with needs_package(
    f"engine={engine!r}: is not installed. Install it: pip install {engine}"
  ):
    handlers = [*log_root.handlers]
    library = importlib.import_module(engine)
    for handler in handlers:  # OpenVINO removes that of absl
      log_root.addHandler(handler)
  try:
    return _ENGINES[engine](library, path, settings)
  except Exception as error:  # each engine has classes of its own
    lines = (line.strip() for line in str(error).splitlines())
    causes = [x for x in lines if x and not x.startswith("Exception from")]
    reason = (causes or [type(error).__name__])[0][:200]
    raise InputError(
      f"{path}: cannot be loaded by {engine} ({reason}). If the file is"
      " damaged, export the model again"
    ) from error
