"""Fine-tunes BERT to label texts, scores it, and labels texts with it.

Also the module to call from Python: `Predictor` loads a trained model once
and labels whatever it is given.
"""

from __future__ import annotations

import collections
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import classification_data
import command_line
import estimator_api
import features
import modeling
import optimization
import tokenization
import training
from classification_data import (  # noqa: F401 (their names are also here)
  ColaProcessor,
  DataProcessor,
  InputExample,
  MnliProcessor,
  MrpcProcessor,
  PaddingInputExample,
  XnliProcessor,
)
from command_line import InputError, write_whole
from execution import Execution
from features import shuffle_epochs

FLAGS = flags.FLAGS


# Examples to features


class InputFeatures:
  """An example as the model takes it."""

  def __init__(
    self, input_ids, input_mask, segment_ids, label_id, is_real_example=True
  ):
    """Takes each feature as it is.

    Args:
      input_ids: ids of the word pieces, padded with 0.
      input_mask: 1 at word pieces, 0 at padding.
      segment_ids: 1 in the second text, else 0.
      label_id: index of the label, or the number for regression.
      is_real_example: false for padding of a batch.
    """
    self.input_ids = input_ids
    self.input_mask = input_mask
    self.segment_ids = segment_ids
    self.label_id = label_id
    self.is_real_example = is_real_example

  def as_record(self) -> dict[str, Any]:
    """The features under their names in a TFRecord."""
    return {
      "input_ids": self.input_ids,
      "input_mask": self.input_mask,
      "segment_ids": self.segment_ids,
      "label_ids": self.label_id,
      "is_real_example": int(self.is_real_example),
    }


def record_layout(
  max_seq_length: int, is_regression: bool = False
) -> features.Layout:
  """The layout of the classifier's records.

  Args:
    max_seq_length: tokens of an example.
    is_regression: whether labels are numbers and not indices.

  Returns:
    What `features.write_records` and `features.parse_records` take.
  """
  return features.token_layout(max_seq_length) | {
    "label_ids": features.Feature(is_float=is_regression),
    # Records of the first releases do not have it.
    "is_real_example": features.Feature(default=1),
  }


def convert_single_example(
  ex_index: int,
  example: InputExample | PaddingInputExample,
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.FullTokenizer,
) -> InputFeatures:
  """Makes the features of one example; logs its tokens if it is the first.

  Args:
    ex_index: the example's index.
    example: the example.
    label_list: the label set; empty for regression. An example without a
      label gets the first one's index.
    max_seq_length: length of the features, in tokens.
    tokenizer: gives the ids.

  Returns:
    The features.

  Raises:
    InputError: the label is not in the label set.
  """
  if isinstance(example, PaddingInputExample):
    nothing = [0] * max_seq_length
    return InputFeatures(nothing, nothing, nothing, 0, is_real_example=False)
  return _convert(ex_index, example, label_list, max_seq_length, tokenizer)[0]


def _convert(ex_index, example, label_list, max_seq_length, tokenizer):
  """The features, and how many tokens did not fit."""
  encoded = features.encode_pair(
    tokenizer, example.text_a, example.text_b, max_seq_length
  )
  if example.label is None:
    label_id = 0
  elif not label_list:
    label_id = float(example.label)
  elif example.label in label_list:
    label_id = label_list.index(example.label)
  else:
    raise InputError(
      f"example {example.guid}: unknown label {example.label!r}; the labels"
      f" are {', '.join(label_list)}"
    )
  if ex_index == 0:
    used = sum(encoded.input_mask)
    tokens = tokenizer.convert_ids_to_tokens(encoded.input_ids[:used])
    logging.info("Example %s, label %s", example.guid, example.label)
    logging.info("  tokens: %s", " ".join(tokens))
  converted = InputFeatures(
    encoded.input_ids, encoded.input_mask, encoded.segment_ids, label_id
  )
  return converted, encoded.num_cut


def convert_examples_to_features(
  examples: Iterable[InputExample | PaddingInputExample],
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.FullTokenizer,
) -> list[InputFeatures]:
  """Makes the features of all examples, see `convert_single_example`."""
  return [
    convert_single_example(
      index, example, label_list, max_seq_length, tokenizer
    )
    for index, example in enumerate(examples)
  ]


def file_based_convert_examples_to_features(
  examples: Sequence[InputExample | PaddingInputExample],
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.FullTokenizer,
  output_file: str,
) -> None:
  """Writes the features of all examples to a TFRecord file.

  Says how many texts were cut, since what is cut the model does not see.

  Args:
    examples: the examples.
    label_list: the label set; empty for regression.
    max_seq_length: length of the features, in tokens.
    tokenizer: gives the ids.
    output_file: the file.

  Raises:
    InputError: a label is not in the label set.
  """
  cut = collections.Counter()

  def records():
    for index, example in enumerate(examples):
      if isinstance(example, PaddingInputExample):
        converted = convert_single_example(
          index, example, label_list, max_seq_length, tokenizer
        )
      else:
        converted, num_cut = _convert(
          index, example, label_list, max_seq_length, tokenizer
        )
        cut.update(examples=num_cut > 0, tokens=num_cut)
      yield converted.as_record()

  features.write_records(
    output_file, records(), record_layout(max_seq_length, not label_list)
  )
  logging.info(
    "%d examples written to %s; %d were longer than %d tokens and lost %d"
    " tokens in all",
    len(examples),
    output_file,
    cut["examples"],
    max_seq_length,
    cut["tokens"],
  )


# Features to batches


def file_based_input_fn_builder(
  input_file: str,
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  is_regression: bool = False,
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  by_length: bool = False,
):
  """`features.record_input_fn` over a file of this task.

  Args:
    input_file: the file.
    seq_length: tokens of its examples.
    is_training: see there.
    drop_remainder: see there.
    is_regression: whether labels are numbers.
    trim: see there.
    seed: see there.
    first_step: see there.
    by_length: see there.

  Returns:
    A function of `params`, which has the `batch_size`.
  """
  return features.record_input_fn(
    input_file,
    record_layout(seq_length, is_regression),
    is_training,
    drop_remainder,
    trim,
    seed,
    first_step,
    by_length,
  )


def input_fn_builder(
  features: Sequence[InputFeatures],
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  seed: int = 0,
):
  """An `input_fn` over features in memory; for small sets and notebooks.

  Args:
    features: what `convert_examples_to_features` gives.
    seq_length: tokens of each.
    is_training: whether they are shuffled and repeated without end.
    drop_remainder: whether a last, smaller batch is left out.
    seed: of the shuffling.

  Returns:
    A function of `params`, which has the `batch_size`.
  """
  del seq_length  # the features have it
  records = [feature.as_record() for feature in features]
  arrays = {
    name: np.array([record[name] for record in records]) for name in records[0]
  }
  arrays = {
    name: array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    for name, array in arrays.items()
  }

  def input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if is_training:
      dataset = shuffle_epochs(dataset, len(records), seed)
    return dataset.batch(params["batch_size"], drop_remainder=drop_remainder)

  return input_fn


# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,
  input_mask,
  segment_ids,
  labels,
  num_labels: int,
  use_one_hot_embeddings: bool,
  is_regression: bool = False,
  dropout_seed=None,
  execution: Execution | None = None,
):
  """The encoder with a classifier, or a regression, on its pooled output.

  Args:
    bert_config: the encoder's sizes.
    is_training: whether dropout is on.
    input_ids: int32 [B, S].
    input_mask: int32 [B, S].
    segment_ids: int32 [B, S].
    labels: int32 [B], or float32 [B] for regression.
    num_labels: L; 1 for regression.
    use_one_hot_embeddings: see `modeling.BertModel`.
    is_regression: whether to predict a number.
    dropout_seed: see `modeling.dropout`.
    execution: how to compute; None for `Execution()`.

  Returns:
    loss [], per_example_loss [B], logits [B, L] and probabilities [B, L], all
    float32. A regression's loss is the squared error, and in place of
    probabilities it gives the number.
  """
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    execution=execution,
  )
  logits = modeling.classification_logits(
    model.get_pooled_output(),
    num_labels,
    dropout_prob=0.1 if is_training else 0.0,
    dropout_seed=dropout_seed,
  )
  logits = tf.cast(logits, tf.float32)
  if is_regression:
    per_example_loss = tf.square(logits[:, 0] - labels)
    probabilities = logits
  else:
    per_example_loss, log_probs = modeling.cross_entropy(logits, labels)
    probabilities = tf.exp(log_probs)
  loss = tf.reduce_mean(per_example_loss)
  return loss, per_example_loss, logits, probabilities


def model_fn_builder(
  bert_config: modeling.BertConfig,
  num_labels: int,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  is_regression: bool = False,
  seed: int | None = None,
  log_steps: int = 20,
  evaluated: dict[str, Any] | None = None,
  execution: Execution | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` of a classifier, for TPUEstimator.

  Args:
    bert_config: the encoder's sizes.
    num_labels: L; 1 for regression.
    init_checkpoint: where the weights start, or None.
    learning_rate: the highest.
    num_train_steps: length of training.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU.
    use_one_hot_embeddings: see `modeling.BertModel`.
    is_regression: whether labels are numbers.
    seed: of dropout, or None for masks that nothing fixes.
    log_steps: steps between two lines of progress.
    evaluated: gets, from an evaluation that is not on a TPU, `logits` [A, L],
      `label_ids` [A] and `is_real_example` [A] of the whole set.
    execution: how to compute; None for `Execution()`.
    options: how to make a step; None for `optimization.StepOptions()`.

  Returns:
    A function of features, labels, mode, params and config.
  """

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features
    restore = functools.partial(
      training.initialize_from_checkpoint,
      init_checkpoint,
      config and config.model_dir,
      use_tpu,
    )

    def build(batch, is_training, dropout_seed=None):
      return create_model(
        bert_config,
        is_training,
        batch["input_ids"],
        batch["input_mask"],
        batch["segment_ids"],
        batch["label_ids"],
        num_labels,
        use_one_hot_embeddings,
        is_regression,
        dropout_seed,
        execution,
      )

    if mode == estimator_api.ModeKeys.TRAIN:
      return training.train_spec(
        lambda batch, seed: (build(batch, True, seed)[0], {}),
        features,
        learning_rate,
        num_train_steps,
        num_warmup_steps,
        use_tpu,
        options or optimization.StepOptions(),
        seed,
        restore,
        params["batch_size"],
        log_steps,
      )

    total_loss, per_example_loss, logits, probabilities = build(features, False)
    scaffold_fn = restore()
    if mode == estimator_api.ModeKeys.PREDICT:
      return estimator_api.TPUEstimatorSpec(
        mode=mode,
        predictions={
          name: features[name] for name in ("place",) if name in features
        }
        | {"probabilities": probabilities},
        scaffold_fn=scaffold_fn,
      )

    label_ids = features["label_ids"]
    is_real_example = tf.cast(features["is_real_example"], tf.float32)

    def metric_fn(per_example_loss, label_ids, logits, is_real_example):
      metrics = {
        "eval_loss": tf.metrics.mean(per_example_loss, is_real_example)
      }
      if not is_regression:
        predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
        metrics["eval_accuracy"] = tf.metrics.accuracy(
          label_ids, predictions, is_real_example
        )
      return metrics

    hooks = []
    if evaluated is not None and not use_tpu:
      kept = {
        "logits": logits,
        "label_ids": label_ids,
        "is_real_example": is_real_example,
      }
      hooks.append(training.CollectHook(kept, into=evaluated))
    return estimator_api.TPUEstimatorSpec(
      mode=mode,
      loss=total_loss,
      eval_metrics=(
        metric_fn,
        [per_example_loss, label_ids, logits, is_real_example],
      ),
      scaffold_fn=scaffold_fn,
      evaluation_hooks=hooks,
    )

  return model_fn


# Scores


def score(
  names: Sequence[str], label_ids: np.ndarray, logits: np.ndarray
) -> dict[str, float]:
  """Scores predictions over a whole set.

  Args:
    names: of `SCORES`.
    label_ids: [A], indices, or numbers for regression.
    logits: [A, L].

  Returns:
    By name, the scores; for classification the confusion matrix too, a list
    with a row for each true label and a column for each predicted one.
  """
  from sklearn import metrics

  if logits.shape[1] == 1:
    return {name: SCORES[name](label_ids, logits[:, 0]) for name in names}
  predictions = logits.argmax(axis=-1)
  scores = {name: SCORES[name](label_ids, predictions) for name in names}
  matrix = metrics.confusion_matrix(
    label_ids, predictions, labels=range(logits.shape[1])
  )
  return scores | {"confusion_matrix": matrix.tolist()}


def _from_sklearn(name: str, **arguments):
  def call(label_ids, predictions):
    from sklearn import metrics

    value = getattr(metrics, name)(label_ids, predictions, **arguments)
    return float(value)

  return call


def _from_scipy(name: str):
  def call(label_ids, predictions):
    from scipy import stats

    return float(getattr(stats, name)(label_ids, predictions)[0])

  return call


SCORES = {
  "accuracy": _from_sklearn("accuracy_score"),
  "f1": _from_sklearn("f1_score"),
  "macro_f1": _from_sklearn("f1_score", average="macro"),
  "matthews": _from_sklearn("matthews_corrcoef"),
  "pearson": _from_scipy("pearsonr"),
  "spearman": _from_scipy("spearmanr"),
}


# A trained model from Python


class Prediction(NamedTuple):
  """What a model says of a text.

  Attributes:
    label: the likeliest label; for regression, the number.
    probabilities: of every label, by label; empty for regression.
  """

  label: str | float
  probabilities: dict[str, float]


class Predictor:
  """A trained classifier, loaded once, that labels texts.

  ```python
  predictor = run_classifier.Predictor("output/mrpc")
  predictor.predict([("He left.", "He went away.")])[0].label
  ```
  """

  def __init__(
    self,
    model_dir: str,
    checkpoint: str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
  ):
    """Loads a model.

    Args:
      model_dir: the `--output_dir` of a training run.
      checkpoint: which of its checkpoints; None for the last.
      batch_size: how many texts are labelled at once.
      precision: "float32", "bfloat16" or "float16", see `--precision`.

    Raises:
      InputError: the folder holds no classifier.
    """
    description = training.load_model_description(model_dir)
    checkpoint = checkpoint or tf.train.latest_checkpoint(model_dir)
    if description.get("script") != "run_classifier" or not checkpoint:
      raise InputError(
        f"{model_dir}: holds no trained classifier; name the --output_dir of a"
        " run of run_classifier.py"
      )
    self.labels = description["labels"]
    self._max_seq_length = description["max_seq_length"]
    self._batch_size = batch_size
    config = training.load_config(os.path.join(model_dir, training.CONFIG_FILE))
    self._tokenizer = tokenization.FullTokenizer(
      os.path.join(model_dir, training.VOCAB_FILE), description["do_lower_case"]
    )
    with tf.Graph().as_default() as graph:
      self._inputs = {
        name: tf.placeholder(tf.int32, [None, None], name)
        for name in features.TOKEN_FEATURES
      }
      self._output = create_model(
        config,
        is_training=False,
        **self._inputs,
        labels=tf.zeros(
          modeling.get_shape_list(self._inputs["input_ids"])[:1],
          tf.int32 if self.labels else tf.float32,
        ),
        num_labels=max(len(self.labels), 1),
        use_one_hot_embeddings=False,
        is_regression=not self.labels,
        execution=Execution(tf.as_dtype(precision), packs=True),
      )[-1]
      self._session = tf.Session(graph=graph)
      tf.train.Saver(tf.trainable_variables()).restore(
        self._session, checkpoint
      )

  def predict(self, texts: Iterable[str | tuple[str, str]]) -> list[Prediction]:
    """Labels texts.

    Args:
      texts: each a text, or a pair of texts for tasks on pairs.

    Returns:
      A prediction for each, in order.
    """
    encoded = [
      features.encode_pair(
        self._tokenizer,
        *((text, None) if isinstance(text, str) else text),
        self._max_seq_length,
      )
      for text in texts
    ]
    lengths = np.array([sum(e.input_mask) for e in encoded])
    order = np.argsort(-lengths, kind="stable")  # like lengths together
    predictions: list[Any] = [None] * len(encoded)
    for start in range(0, len(order), self._batch_size):
      batch = order[start : start + self._batch_size]
      feed = {
        tensor: [getattr(encoded[i], name)[: lengths[batch[0]]] for i in batch]
        for name, tensor in self._inputs.items()
      }
      rows = self._session.run(self._output, feed)
      for index, row in zip(batch, rows):
        predictions[index] = prediction(self.labels, row)
    return predictions

  def close(self) -> None:
    """Frees the model."""
    self._session.close()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


def prediction(labels: Sequence[str], row: np.ndarray) -> Prediction:
  """What a row of the model's output says.

  Args:
    labels: the label set; empty for regression.
    row: probabilities [L], or the number [1].

  Returns:
    A `Prediction`.
  """
  if not labels:
    return Prediction(float(row[0]), {})
  by_label = {label: float(p) for label, p in zip(labels, row)}
  return Prediction(labels[int(np.argmax(row))], by_label)


# The command line


def define_flags() -> None:
  """Defines the command line."""
  training.define_model_flags()
  training.define_text_flags()
  training.define_training_flags()
  training.define_epoch_flags()
  training.define_execution_flags()
  training.define_tpu_flags()
  flags.adopt_module_key_flags(training)  # so that --help shows them
  flags.DEFINE_string(
    "data_dir", None, "Folder of the data set, with the task's files."
  )
  flags.DEFINE_string(
    "task_name",
    None,
    "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX, XNLI; or tsv"
    " for your own files.",
  )
  flags.DEFINE_bool("do_train", False, "Whether to train.")
  flags.DEFINE_bool("do_eval", False, "Whether to score on the dev set.")
  flags.DEFINE_bool("do_predict", False, "Whether to label the test set.")
  flags.DEFINE_integer("train_batch_size", 32, "Examples a step of training.")
  flags.DEFINE_integer("eval_batch_size", 8, "Examples a step of scoring.")
  flags.DEFINE_integer("predict_batch_size", 8, "Examples a step of labelling.")
  flags.DEFINE_string("language", "zh", "Language of XNLI.")
  flags.DEFINE_string(
    "predict_file",
    None,
    "Texts to label in place of the test set, one a line, with a tab before"
    " the second of a pair; - for standard input.",
  )
  flags.DEFINE_enum(
    "bad_rows",
    "refuse",
    ["refuse", "skip"],
    "What becomes of rows that cannot be read; skipped ones are counted.",
  )
  # --task_name=tsv:
  for split in ("train", "dev", "test"):
    flags.DEFINE_string(
      f"{split}_file",
      f"{split}.tsv",
      f"For tsv: the {split} file, in --data_dir if that is given; .tsv, .csv"
      " or .jsonl.",
    )
  flags.DEFINE_string(
    "text_a_column", "1", "For tsv: name, or number from 1, of the text."
  )
  flags.DEFINE_string(
    "text_b_column", None, "For tsv: of the second text, for pairs."
  )
  flags.DEFINE_string("label_column", "2", "For tsv: of the label.")
  flags.DEFINE_list(
    "labels", None, "For tsv: the label set; read from the data if not given."
  )
  flags.DEFINE_enum(
    "problem_type",
    "classification",
    ["classification", "regression"],
    "For tsv: whether labels are names, or numbers to come close to.",
  )
  flags.mark_flags_as_required(
    ["task_name", "vocab_file", "bert_config_file", "output_dir"]
  )


def make_processor(task: str) -> DataProcessor:
  """The processor that the flags ask for.

  Args:
    task: `--task_name` in lower case without hyphens.

  Returns:
    The processor.

  Raises:
    InputError: there is no such task, or a flag that it needs is missing.
  """
  if task == "tsv":
    processor = classification_data.OwnDataProcessor(
      {name: FLAGS[f"{name}_file"].value for name in ("train", "dev", "test")},
      FLAGS.text_a_column,
      FLAGS.text_b_column,
      FLAGS.label_column,
      FLAGS.labels,
      FLAGS.problem_type == "regression",
    )
    if not FLAGS.labels and not FLAGS.do_train:
      # A trained model knows its labels.
      trained = training.load_model_description(FLAGS.output_dir)
      processor.labels = trained.get("labels", [])
    if not processor.labels and not processor.is_regression:
      processor.read_labels(FLAGS.data_dir)
  elif task not in classification_data.PROCESSORS:
    raise InputError(
      f"--task_name={FLAGS.task_name}: there is no such task; there are"
      f" {', '.join(classification_data.PROCESSORS)} and tsv"
    )
  elif not FLAGS.data_dir:
    raise InputError(f"--data_dir is needed with --task_name={FLAGS.task_name}")
  elif task == "xnli":
    processor = XnliProcessor(FLAGS.language)
  else:
    processor = classification_data.PROCESSORS[task]()
  processor.skip_bad_rows = FLAGS.bad_rows == "skip"
  return processor


def main(_) -> None:
  """Does what the flags say: trains, scores, labels."""
  if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict):
    raise InputError("nothing to do; give --do_train, --do_eval, --do_predict")
  config = training.load_config(FLAGS.bert_config_file)
  training.check_max_seq_length(FLAGS.max_seq_length, config)
  tokenizer = training.load_tokenizer(
    FLAGS.vocab_file, FLAGS.do_lower_case, config, FLAGS.init_checkpoint
  )
  training.find_model(FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.do_train)

  # Whatever is wrong with folders and data is said now, not after training.
  task = FLAGS.task_name.lower().replace("-", "").replace("_", "")
  processor = make_processor(task)
  labels = processor.get_labels()
  model = {
    "script": "run_classifier",
    "task": processor.model_task or task,
    "labels": labels,
    "max_seq_length": FLAGS.max_seq_length,
    "do_lower_case": FLAGS.do_lower_case,
  }
  must_agree = ["script", "task", "labels"] if FLAGS.do_train else ["labels"]
  training.check_output_dir(FLAGS.output_dir, model, config, must_agree)
  train_examples, eval_sets, predict_sets = read_examples(processor)
  tf.gfile.MakeDirs(FLAGS.output_dir)
  if FLAGS.do_train:
    training.claim_output_dir(FLAGS.output_dir, model, config, FLAGS.vocab_file)

  num_train_steps = int(
    len(train_examples) / FLAGS.train_batch_size * FLAGS.num_train_epochs
  )
  evaluated: dict[str, Any] = {}
  estimator = build_estimator(config, processor, num_train_steps, evaluated)
  steps_done = training.steps_done(FLAGS.output_dir)
  input_fn = functools.partial(write_and_read, processor, tokenizer)
  if FLAGS.do_train and not training.is_trained(
    FLAGS.output_dir, steps_done, num_train_steps
  ):
    logging.info(
      "Training on %d examples, from step %d to %d, %d examples a step",
      len(train_examples),
      steps_done,
      num_train_steps,
      FLAGS.train_batch_size,
    )
    estimator.train(
      input_fn(
        "train",
        train_examples,
        FLAGS.train_batch_size,
        steps_done,
        FLAGS.group_by_length,
      ),
      max_steps=num_train_steps,
    )
  for ending, examples in eval_sets.items():
    steps = None
    if FLAGS.use_tpu:
      steps = -(-len(examples) // FLAGS.eval_batch_size)
    results = estimator.evaluate(
      input_fn(f"eval{ending}", examples, FLAGS.eval_batch_size), steps
    )
    results.update(score_evaluated(processor.scores, evaluated, labels))
    training.write_results(
      os.path.join(FLAGS.output_dir, f"eval_results{ending}.txt"), results
    )
  for ending, examples in predict_sets.items():
    rows = estimator.predict(
      input_fn(
        f"predict{ending}", examples, FLAGS.predict_batch_size, by_length=True
      )
    )
    if not FLAGS.use_tpu:
      rows = features.in_order(rows)
    write_predictions(
      os.path.join(FLAGS.output_dir, f"test_results{ending}"),
      examples,
      (row["probabilities"] for row in rows),
      labels,
      show=bool(FLAGS.predict_file),
    )


def build_estimator(
  config: modeling.BertConfig,
  processor: DataProcessor,
  num_train_steps: int,
  evaluated: dict[str, Any],
):
  """The Estimator of the model that the flags and the data describe.

  Args:
    config: the encoder's sizes.
    processor: knows the labels.
    num_train_steps: length of training.
    evaluated: see `model_fn_builder`.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  execution, options = training.plan_training(training.read_execution(), config)
  model_fn = model_fn_builder(
    bert_config=config,
    num_labels=max(len(processor.get_labels()), 1),
    init_checkpoint=FLAGS.init_checkpoint,
    learning_rate=FLAGS.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(num_train_steps * FLAGS.warmup_proportion),
    use_tpu=FLAGS.use_tpu,
    use_one_hot_embeddings=FLAGS.use_tpu,
    is_regression=processor.is_regression,
    seed=FLAGS.seed,
    log_steps=FLAGS.log_steps,
    evaluated=evaluated,
    execution=execution,
    options=options,
  )
  return training.build_estimator(
    model_fn,
    FLAGS.output_dir,
    FLAGS.train_batch_size,
    FLAGS.eval_batch_size,
    FLAGS.predict_batch_size,
    tf_random_seed=FLAGS.seed,
    save_checkpoints_steps=FLAGS.save_checkpoints_steps,
  )


def write_and_read(
  processor: DataProcessor,
  tokenizer: tokenization.FullTokenizer,
  name: str,
  examples: Sequence[InputExample],
  batch_size: int,
  steps_done: int | None = None,
  by_length: bool = False,
):
  """Writes the records of some examples, and reads them in batches.

  Args:
    processor: knows the labels.
    tokenizer: gives the ids.
    name: of the records' file in `--output_dir`, without `.tf_record`.
    examples: the examples.
    batch_size: examples a step.
    steps_done: for training, the step to go on from; else None.
    by_length: see `features.record_input_fn`; not on a TPU.

  Returns:
    An `input_fn`.
  """
  is_training = steps_done is not None
  if FLAGS.use_tpu and not is_training:
    padding = [PaddingInputExample()] * (-len(examples) % batch_size)
    examples = [*examples, *padding]
  path = os.path.join(FLAGS.output_dir, f"{name}.tf_record")
  file_based_convert_examples_to_features(
    examples, processor.get_labels(), FLAGS.max_seq_length, tokenizer, path
  )
  return file_based_input_fn_builder(
    path,
    FLAGS.max_seq_length,
    is_training,
    drop_remainder=FLAGS.use_tpu,
    is_regression=processor.is_regression,
    trim=not FLAGS.use_tpu,
    seed=FLAGS.seed,
    first_step=steps_done or 0,
    by_length=by_length and not FLAGS.use_tpu,
  )


def read_examples(processor: DataProcessor):
  """Reads the examples of everything that the flags ask for.

  Args:
    processor: reads them.

  Returns:
    The training examples; those to score on and those to label, by the ending
    of the files for their results.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  train_examples, eval_sets, predict_sets = [], {}, {}
  if FLAGS.do_train:
    train_examples = processor.get_train_examples(FLAGS.data_dir)
    if len(train_examples) * FLAGS.num_train_epochs < FLAGS.train_batch_size:
      raise InputError(
        f"{len(train_examples)} training examples are not enough for one step"
        f" of --train_batch_size={FLAGS.train_batch_size}"
      )
  if FLAGS.do_eval:
    eval_sets = processor.sets(FLAGS.data_dir, "dev")
  if FLAGS.do_predict and FLAGS.predict_file:
    predict_sets = {"": classification_data.read_texts(FLAGS.predict_file)}
  elif FLAGS.do_predict:
    predict_sets = processor.sets(FLAGS.data_dir, "test")
  return train_examples, eval_sets, predict_sets


def score_evaluated(
  names: Sequence[str], evaluated: Mapping[str, np.ndarray], labels
) -> dict[str, Any]:
  """The task's scores of an evaluation, for its results file.

  Args:
    names: of `SCORES`.
    evaluated: as `model_fn_builder` fills it; empty on a TPU.
    labels: the label set.

  Returns:
    Results by key, beside those that Estimator gives.
  """
  if not evaluated:
    logging.info("On a TPU only loss and accuracy are scored")
    return {}
  real = evaluated["is_real_example"] > 0
  scores = score(names, evaluated["label_ids"][real], evaluated["logits"][real])
  matrix = scores.pop("confusion_matrix", None)
  results: dict[str, Any] = {
    f"eval_{name}": np.float32(value)
    for name, value in scores.items()
    if name != "accuracy"  # Estimator's own results have it
  }
  if matrix:
    results["confusion_matrix"] = matrix
    results["labels"] = json.dumps(labels, ensure_ascii=False)
  return results


def write_predictions(
  path: str,
  examples: Sequence[InputExample],
  rows: Iterable[np.ndarray],
  labels: Sequence[str],
  show: bool = False,
) -> None:
  """Writes what the model says of each example, as it says it.

  Args:
    path: of both files without their endings: `.tsv` gets the probabilities
      alone, `.jsonl` guid, label and probabilities by label.
    examples: the examples.
    rows: the model's output for each, and maybe for padding after them.
    labels: the label set; empty for regression.
    show: whether label and text also go to standard output.
  """
  with (
    write_whole(path + ".tsv") as table,
    write_whole(path + ".jsonl") as lines,
  ):
    for example, row in zip(examples, rows):
      table.write("\t".join(str(value) for value in row) + "\n")
      said = prediction(labels, row)
      line = {"guid": example.guid, **said._asdict()}
      lines.write(json.dumps(line, ensure_ascii=False) + "\n")
      if show:
        texts = filter(None, [example.text_a, example.text_b])
        print(said.label, *texts, sep="\t")
  logging.info("%d predictions in %s.tsv and .jsonl", len(examples), path)


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
