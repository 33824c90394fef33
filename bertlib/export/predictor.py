"""A trained model in a session, ready to predict."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli import lazy_module
from bertlib.cli.errors import InputError
from bertlib.cli.option import check_argument, declaration
from bertlib.compute import onednn
from bertlib.compute.fast_compute import FastCompute
from bertlib.compute.precision import hidden_dtype, warn_if_emulated
from bertlib.data import vocabulary
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.io import model_files, processes
from bertlib.io.text_files import Encoding
from bertlib.settings import embedding_spec
from bertlib.settings.common import (
  ComputeSettings,
  DeviceSettings,
  QuantizationSettings,
)
from bertlib.settings.training import RunSettings
from bertlib.task.task_record import TaskRecord

quantization = lazy_module.load("bertlib.export.quantization")

# As --precision, but a predictor does not measure which is fastest.
_PRECISION = declaration(ComputeSettings, "precision").without("auto")

# Batches are padded to a multiple of this length. oneDNN sets up kernels at the
# first batch of each length, which takes half as long as computing one text.
_LENGTH_UNIT = 8


class LoadedModel(BatchPredictor):
  """A trained model, loaded once, for prediction.

  Base class of each script's `Predictor`, which adds `build`; `predict` is that
  of the task's `BatchPredictor`.
  """

  record: TaskRecord  # of the task

  @checkpoint_files.keeping()
  def __init__(
    self,
    model_dir: str,
    checkpoint: str | None = None,
    batch_size: int | None = None,
    precision: str = "float32",
    num_threads: int | None = None,
    calibration_file: str | None = None,
    int8_skip_layers: Sequence[str] = (),
    encoding: Encoding | None = None,
  ):
    """Loads a model.

    Args:
      model_dir: the `--output_dir` of a training run, or the folder of a
        converted or published model.
      checkpoint: path of a checkpoint; None for the folder's
        `model_checkpoint`.
      batch_size: rows per batch; None for about 2048 tokens per batch.
      precision: "float32", "bfloat16", "float16" or "int8", see `--precision`.
      num_threads: threads that compute on the CPU; None for one per core. All
        of TensorFlow in a process shares them: the first number counts.
      calibration_file: texts for the ranges of "int8", see
        `--calibration_file`; None for those of `quantization.json`.
      int8_skip_layers: see `--int8_skip_layers`.
      encoding: encoding of `calibration_file`; None for UTF-8.

    Raises:
      InputError: an argument is out of range; the folder is missing, contains
        no model of the task, or files that do not belong to each other; there
        are no 8-bit ranges, see also `quantization.weight_getter`; or the
        process was forked after TensorFlow had computed.
    """
    processes.check_threads(model_dir)
    check_argument("precision", precision, _PRECISION)
    warn_if_emulated(precision)
    if batch_size is not None:
      flag = declaration(RunSettings, "predict_batch_size")
      check_argument("batch_size", batch_size, flag)
    if num_threads is not None:
      flag = declaration(DeviceSettings, "num_threads")
      check_argument("num_threads", num_threads, flag)
    description, found = self.find_model(model_dir, checkpoint)
    config = model_folder.load_config(
      os.path.join(model_dir, model_files.CONFIG)
    )
    tokenizer = vocabulary.load_tokenizer(
      model_files.path_of(model_dir, "vocab_file"),
      description["do_lower_case"],
      config.vocab_size,
      max_input_chars_per_word=description.get("max_input_chars_per_word"),
      type_vocab_size=config.type_vocab_size,
    )
    super().__init__(
      model_dir,
      description,
      vars(config),
      tokenizer,
      batch_size,
      _LENGTH_UNIT,
      num_threads or processes.usable_cores(),
    )
    if num_threads:
      _limit_threads(num_threads)
    # Operations run one after the other in the thread that runs the session:
    # they are too short to be handed to other threads.
    self._session_config = tf.ConfigProto(
      intra_op_parallelism_threads=num_threads or 0,
      inter_op_parallelism_threads=-1,
    )
    compute = FastCompute(
      hidden_dtype(precision), unpad=True, use_onednn=onednn.is_available()
    )
    # A graph holds at most 2 GB of constants.
    is_small = model_folder.num_weights(config) < 2**29
    if precision == "int8":
      settings = QuantizationSettings(calibration_file, int8_skip_layers)
      use = functools.partial(
        self._build_in_8_bits, config, compute, settings, encoding
      )
    elif precision != "float32" and is_small:
      use = functools.partial(self._build_with_constants, config, compute)
    else:
      self._build(config, compute)
      use = self._restore
    use(found)

  @classmethod
  def find_model(
    cls, model_dir: str, checkpoint: str | None = None
  ) -> tuple[dict[str, Any], str]:
    """Description and checkpoint of a model of this task, both checked."""
    if not tf.gfile.IsDirectory(model_dir):
      raise InputError(f"{model_dir}: no such folder")
    description = model_folder.check(model_dir, cls.record)
    if checkpoint:
      checkpoint = checkpoint_files.find_checkpoint(checkpoint)
      checkpoint_files.check(checkpoint)
      model_folder.check_same_task(model_dir, description, checkpoint)
    else:
      checkpoint = checkpoint_files.model_checkpoint(model_dir)
    if description.get("script") != cls.record.script or not checkpoint:
      raise InputError(
        f"{model_dir}: holds no model that {cls.record.purpose}; name the"
        f" --output_dir of a run of {cls.record.script}.py"
      )
    return description, checkpoint

  def _build_in_8_bits(
    self,
    config: modeling.BertConfig,
    compute: FastCompute,
    settings: QuantizationSettings,
    encoding: Encoding | None,
    checkpoint: str,
  ) -> None:
    """Builds the graph with the weights of a checkpoint in 8 bits."""
    onednn.check_int8()
    encoder = quantization.TrainedEncoder(
      config,
      checkpoint,
      self._model_dir,
      self.tokenizer,
      self.description["max_seq_length"],
      embedding_spec.default_prefix(self.description),
      encoding,
    )
    getter = quantization.weight_getter(encoder, settings)
    self._build(config, compute, getter)
    self._check_weights(checkpoint)

  def _build_with_constants(
    self, config: modeling.BertConfig, compute: FastCompute, checkpoint: str
  ) -> None:
    """Builds the graph with the weights of a checkpoint as constants."""
    self._build(config, compute, initialize.constant_getter(checkpoint))
    self._check_weights(checkpoint)

  def _restore(self, checkpoint: str) -> None:
    """Restores the weights that the outputs are computed from."""
    self._check_weights(checkpoint)
    with (
      checkpoint_files.as_input_errors(checkpoint),
      self._session.graph.as_default(),
    ):
      self._saver.restore(self._session, checkpoint_files.kept(checkpoint))

  def _check_weights(self, checkpoint: str) -> None:
    """Rejects a checkpoint of another model."""
    initialize.check_trained(
      checkpoint, self._needed, [f"{embedding_spec.PROJECTION_SCOPE}/"]
    )
    initialize.warn_of_unused(checkpoint, self._known)

  def _build(
    self,
    config: modeling.BertConfig,
    compute: FastCompute,
    constants: Callable | None = None,
  ) -> None:
    """Builds the graph, with variables or a custom getter of constants."""
    self._needed: dict[str, Sequence[int]] = {}

    def note(getter, name, shape=None, **kwargs):
      self._needed[name] = shape
      return getter(name, shape=shape, **kwargs)

    with tf.Graph().as_default() as graph:
      inputs = initialize.token_placeholders()
      with (
        tf.variable_scope("", custom_getter=constants),
        tf.variable_scope("", custom_getter=note),
      ):
        outputs = self.build(self.description, config, inputs, compute)
      self._session = tf.Session(graph=graph, config=self._session_config)
      # A converted model may lack the pooler, which few outputs need.
      weights = initialize.weights_of([outputs])
      self._known = {*self._needed}
      for variable in tf.trainable_variables():
        if variable not in weights:
          del self._needed[initialize.name_of(variable)]
      self._saver = tf.train.Saver(weights) if weights else None
      self._compute = self._session.make_callable(
        outputs, list(inputs.values())
      )

  @staticmethod
  def build(
    description: Mapping[str, Any],
    config: modeling.BertConfig,
    inputs: Mapping[str, Any],
    compute: FastCompute,
  ):
    """Builds the graph: from inputs, int32 [B, S], to a tensor [B, ...]."""
    raise NotImplementedError

  def run(self, rows, reduce=None):
    """Outputs of rows, in order; see `BatchPredictor.run`."""
    processes.check_threads(self._model_dir)
    return super().run(rows, reduce)

  def close(self) -> None:
    """Closes the session."""
    super().close()
    self._session.close()


def _limit_threads(num_threads: int) -> None:
  """Sets the number of TensorFlow's threads, if it has not started them."""
  # A graph with `tf.cond` starts them before there is a session with its own
  # configuration.
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
