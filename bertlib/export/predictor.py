"""A trained model in a session, ready to predict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli.errors import InputError
from bertlib.cli.option import check_argument, declaration
from bertlib.compute import onednn
from bertlib.compute.fast_compute import FastCompute
from bertlib.compute.precision import hidden_dtype, warn_if_emulated
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.export import eight_bits
from bertlib.io import model_files, processes
from bertlib.io.text_files import Encoding
from bertlib.settings import training
from bertlib.settings.common import ComputeSettings, QuantizationSettings
from bertlib.task.task_record import TaskRecord

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
  # What names of the task's weights begin with that the model must all use.
  scopes: Sequence[str] = ()

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
    training.check_prediction(batch_size=batch_size, num_threads=num_threads)
    description, checkpoint = self.find_model(model_dir, checkpoint)
    config = model_folder.load_config(
      os.path.join(model_dir, model_files.CONFIG)
    )
    super().__init__(
      model_dir,
      description,
      vars(config),
      batch_size,
      _LENGTH_UNIT,
      num_threads or processes.usable_cores(),
    )
    if num_threads:
      _limit_threads(num_threads)
    compute = FastCompute(
      hidden_dtype(precision), unpad=True, use_onednn=onednn.is_available()
    )
    # A graph holds at most 2 GB of constants.
    is_small = model_folder.num_weights(config) < 2**29
    constants = None
    if precision == "int8":
      onednn.check_int8()
      constants = eight_bits.weight_getter(
        QuantizationSettings(calibration_file, int8_skip_layers),
        config=config,
        checkpoint=checkpoint,
        folder=model_dir,
        tokenizer=self.tokenizer,
        max_seq_length=description["max_seq_length"],
        prefix=self.record.prefix(description),
        encoding=encoding,
      )
    elif precision != "float32" and is_small:
      constants = initialize.constant_getter(checkpoint)
    self._build(config, checkpoint, compute, constants, num_threads or 0)

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

  def _build(
    self,
    config: modeling.BertConfig,
    checkpoint: str,
    compute: FastCompute,
    constants: Callable | None,  # custom getter; None restores variables
    num_threads: int,
  ) -> None:
    """Builds the graph with the weights of a checkpoint, and starts it."""
    needed: dict[str, Sequence[int]] = {}

    def note(getter, name, shape=None, **kwargs):
      needed[name] = shape
      return getter(name, shape=shape, **kwargs)

    # Operations run one after the other in the thread that runs the session:
    # they are too short to be handed to other threads.
    session_config = tf.ConfigProto(
      intra_op_parallelism_threads=num_threads, inter_op_parallelism_threads=-1
    )
    with tf.Graph().as_default() as graph:
      inputs = initialize.token_placeholders()
      with (
        tf.variable_scope("", custom_getter=constants),
        tf.variable_scope("", custom_getter=note),
      ):
        outputs = self.build(self.description, config, inputs, compute)
      # A converted model may lack the pooler, which few outputs need.
      weights, known = initialize.weights_of([outputs]), {*needed}
      for variable in tf.trainable_variables():
        if variable not in weights:
          del needed[initialize.name_of(variable)]
      initialize.check_trained(checkpoint, needed, self.scopes)
      initialize.warn_of_unused(checkpoint, known)
      self._session = tf.Session(graph=graph, config=session_config)
      if constants is None:
        with checkpoint_files.as_input_errors(checkpoint):
          tf.train.Saver(weights).restore(
            self._session, checkpoint_files.kept(checkpoint)
          )
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
