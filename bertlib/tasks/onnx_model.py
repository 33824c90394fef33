"""`OnnxModel`: from texts to predictions without TensorFlow.

Imports NumPy, the tokenizer, the decoding of the task, and ONNX Runtime or
OpenVINO, which compute.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bertlib.checkpoints import task_record
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli.errors import InputError, needs_package
from bertlib.cli.option import AT_LEAST_1
from bertlib.data import batch_predictor, vocabulary
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.export import onnx_folder
from bertlib.export.onnx_graph import INPUT_NAMES, MODEL_FILE
from bertlib.io import json_files, model_files

_FIX = "Export the model again"


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
    rows = self.encode_texts(texts)
    return [row.num_tokens for row in rows], [row._asdict() for row in rows]

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
    del arguments
    description = json_files.read(
      os.path.join(folder, model_files.DESCRIPTION),
      {"script?": str, "max_seq_length": int, "do_lower_case": bool},
      _FIX,
    )
    script = description.get("script")
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
    model.description = description
    return model

  def __init__(
    self,
    folder: str,
    engine: str = "onnxruntime",
    batch_size: int | None = None,
    num_threads: int | None = None,
    precision: str = "float32",
    cache_dir: str | None = None,
    *,
    task: TaskRecord | None = None,
  ):
    """Loads a model.

    Args:
      folder: the `--export_dir` of `export_model.py --format=onnx`.
      engine: "onnxruntime" or "openvino", the package that computes.
      batch_size: texts per batch; None for about 2048 tokens per batch.
      num_threads: threads that compute; None for one per core.
      precision: "float32", or "bfloat16" with OpenVINO: of what is not in 8
        bits.
      cache_dir: folder of models compiled by OpenVINO; None for one in
        `folder`, if that can be written; "" for none.
      task: `RECORD` of a task of your own.

    Raises:
      InputError: the folder is no export, the package is not installed, or an
        argument is not one of those.
    """
    del task  # used by `__new__`
    description = self.description
    config = json_files.read(os.path.join(folder, model_files.CONFIG), dict)
    tokenizer = vocabulary.load_tokenizer(
      os.path.join(folder, model_files.VOCAB),
      description["do_lower_case"],
      never_split=self.never_split,
      checks_case=False,
      max_input_chars_per_word=description.get("max_input_chars_per_word"),
    )
    if engine not in _ENGINES:
      raise InputError(
        f"engine={engine!r}: is not one of {', '.join(_ENGINES)}"
      )
    if precision not in _ENGINES[engine].precisions:
      raise InputError(
        f"precision={precision!r}: is not one of"
        f" {', '.join(_ENGINES[engine].precisions)} with {engine}"
      )
    for name, value in (
      ("batch_size", batch_size),
      ("num_threads", num_threads),
    ):
      if value is not None and value not in AT_LEAST_1:
        raise InputError(f"{name}={value!r}: is not {AT_LEAST_1}")
    if cache_dir is None and os.access(folder, os.W_OK):
      cache_dir = os.path.join(folder, onnx_folder.CACHE)
    self._engine = _start_engine(
      engine,
      os.path.join(folder, MODEL_FILE),
      num_threads,
      precision,
      cache_dir,
    )
    super().__init__(
      folder,
      description,
      config,
      tokenizer,
      batch_size,
      description.get("seq_length") or self._engine.length_unit,
      num_batches=1,  # each with all threads
    )

  def _compute(self, *arrays):
    """See base class; of several outputs, a tuple for each row."""
    names = (INPUT_NAMES.get(name, name) for name in self.features)
    outputs = self._engine.run(
      {name: array.astype(np.int64) for name, array in zip(names, arrays)}
    )
    return outputs[0] if len(outputs) == 1 else zip(*outputs)


class _OnnxRuntime:
  """A model in ONNX Runtime."""

  precisions = ("float32",)
  length_unit = 1  # padding only costs

  def __init__(self, onnxruntime, path, num_threads, precision, cache_dir):
    del precision, cache_dir
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or 0
    self._session = onnxruntime.InferenceSession(
      path, options, providers=["CPUExecutionProvider"]
    )

  def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a batch."""
    return self._session.run(None, inputs)


class _OpenVino:
  """A model in OpenVINO."""

  precisions = ("float32", "bfloat16")
  # It compiles once for each length, which takes about 10 ms.
  length_unit = 8

  def __init__(self, openvino, path, num_threads, precision, cache_dir):
    settings = {
      "PERFORMANCE_HINT": "LATENCY",
      "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[
        precision
      ],
    }
    if num_threads:
      settings["INFERENCE_NUM_THREADS"] = num_threads
    if cache_dir:
      settings["CACHE_DIR"] = cache_dir
    core = openvino.Core()
    self._model = core.compile_model(path, "CPU", settings)
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


_ENGINES = {"onnxruntime": _OnnxRuntime, "openvino": _OpenVino}


def _start_engine(
  engine: str, path: str, *options: Any
) -> _OnnxRuntime | _OpenVino:
  """Loads a model file in an engine; InputError if that is not possible."""
  if not os.path.exists(path):
    raise InputError(f"{path}: no such file. {_FIX}")
  with needs_package(
    f"engine={engine!r}: is not installed. Install it: pip install {engine}"
  ):
    library = importlib.import_module(engine)
  try:
    return _ENGINES[engine](library, path, *options)
  except Exception as error:  # each engine has classes of its own
    reason = str(error).strip().partition("\n")[0][:200]
    raise InputError(f"{path}: cannot be loaded ({reason}). {_FIX}") from error
