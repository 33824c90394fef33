"""Fine-tunes BERT for text classification, evaluates it and predicts labels.

Also the module to call from Python: `Predictor` loads a trained model once
and labels whatever it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.classification.settings import (
    ClassifierSettings,
    check_task,
  )

  app.parse_flags(
    ClassifierSettings,
    imports_tensorflow=True,
    checks=[initial_model.check, check_task],
  )
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import app, option
from bertlib.cli.steps import Steps
from bertlib.data import model_inputs, training_records
from bertlib.exchange import resolve
from bertlib.export import predictor
from bertlib.io import result_files
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.settings import model_description
from bertlib.settings.common import LongTextSettings
from bertlib.task.task_record import Task
from bertlib.tasks.classification import (
  classification,
  classification_decoding,
  classification_records,
  classification_report,
  classifier_inputs,
)
from bertlib.tasks.classification.classification import Example
from bertlib.tasks.classification.record import RECORD
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.training import loop, runs, train_step
from bertlib.training.runs import Run, TextSet

# isort: off
# Names of google-research/bert, which other code imports from here.
from bertlib.data.model_inputs import _truncate_seq_pair  # noqa: F401
from bertlib.tasks.classification.classification import (  # noqa: F401
  ChoiceExample, ColaProcessor, DataProcessor, InputExample, MnliProcessor,
  MrpcProcessor, PaddingInputExample, Problem, XnliProcessor,
)  # fmt: skip
from bertlib.tasks.classification.classification_records import (  # noqa: F401
  InputFeatures, convert_examples_to_features, convert_single_example,
  file_based_convert_examples_to_features, file_based_input_fn_builder,
  input_fn_builder,
)  # fmt: skip

FLAGS = flags.FLAGS


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
  kind: str = "classification",
  dropout_seed=None,
  compute: modeling.Compute | None = None,
  label_weights: Sequence[float] | None = None,
  total_weight=None,
  example_weights=None,
):
  """Builds the encoder with a classifier on its pooled output.

  Args:
    bert_config: config of the encoder.
    is_training: whether dropout is on.
    input_ids: int32 [B, S]; [B, choices, S] for multiple choice.
    input_mask: same shape as `input_ids`; 1 at tokens, 0 at padding.
    segment_ids: same shape as `input_ids`.
    labels: int32 [B]; float32 [B] for regression; float32 [B, labels] of 0 and
      1 for multi-label classification.
    num_labels: number of labels; 1 for regression.
    use_one_hot_embeddings: see `modeling.BertModel`.
    kind: see `classification.Problem`.
    dropout_seed: see `modeling.dropout`.
    compute: None for `modeling.Compute()`.
    label_weights: loss weight of each label, L numbers; for multi-label
      classification the weight of positive examples. None for 1.
    total_weight: float32 [], divisor of the weighted loss; None for the sum of
      the weights.
    example_weights: float32 [B], loss weight of each example; None for 1.

  Returns:
    loss [], per_example_loss [B] (without weights), logits [B, labels] and
    probabilities [B, labels], all float32. Regression has the squared error as
    its loss, and predicted values instead of probabilities.
  """
  has_choices = kind == "multiple_choice"
  if has_choices:  # [B * choices, S], one row per choice
    input_ids, input_mask, segment_ids = (
      tf.reshape(tensor, [-1, modeling.get_shape_list(tensor)[-1]])
      for tensor in (input_ids, input_mask, segment_ids)
    )
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
    output_positions=tf.zeros_like(input_ids[:, :1]),  # [CLS]
  )
  logits = modeling.classification_logits(
    model.get_pooled_output(),
    1 if has_choices else num_labels,
    dropout_prob=is_training * bert_config.classifier_dropout,
    dropout_seed=dropout_seed,
  )
  logits = tf.reshape(tf.cast(logits, tf.float32), [-1, num_labels])
  return losses_and_outputs(
    kind, logits, labels, label_weights, example_weights, total_weight
  )


def losses_and_outputs(
  kind, logits, labels, label_weights, example_weights, total_weight
):
  """Losses and outputs of `create_model`, given its logits."""
  outputs = logits
  if kind == "regression":
    losses = weighted = tf.square(logits[:, 0] - labels)
  elif kind == "multi_label":
    # Weights of labels are those of positive examples.
    losses, weighted = (
      tf.reduce_mean(
        tf.nn.weighted_cross_entropy_with_logits(
          labels, logits, tf.constant(weights, tf.float32)
        ),
        axis=-1,
      )
      for weights in (1.0, label_weights or 1.0)
    )
    outputs = tf.sigmoid(logits)
  else:
    losses, log_probs = modeling.cross_entropy(logits, labels)
    weighted, outputs = losses, tf.exp(log_probs)
    if label_weights:
      weights = tf.gather(tf.constant(label_weights, tf.float32), labels)
      example_weights = weights * (
        1.0 if example_weights is None else example_weights
      )
  loss = tf.reduce_mean(weighted)
  if example_weights is not None:
    loss = modeling.weighted_mean(weighted, example_weights, total_weight)
  return loss, losses, logits, outputs


def model_fn_builder(
  bert_config: modeling.BertConfig,
  num_labels: int,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  kind: str = "classification",
  label_weights: Sequence[float] | None = None,
  texts_per_window: float | None = None,
  **more_arguments: Any,
):
  """The `model_fn` of a classifier, for TPUEstimator.

  `num_labels`, `kind` and `label_weights`, which only training uses, are those
  of `create_model`. `use_one_hot_embeddings` is that of `modeling.BertModel`.
  `texts_per_window` is the mean of the feature `example_weights` of a training
  set; None to train without these weights. All other arguments are
  `train_step.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config.
  """
  arguments = train_step.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  def build(batch, is_training, dropout_seed=None, **weighting):
    if is_training and texts_per_window:
      weighting["example_weights"] = batch["example_weights"]
    return create_model(
      bert_config,
      is_training,
      batch["input_ids"],
      batch["input_mask"],
      batch["segment_ids"],
      batch["label_ids"],
      num_labels,
      use_one_hot_embeddings,
      kind,
      dropout_seed,
      arguments.compute,
      **weighting,
    )

  def training_loss(features):
    weighting = {"label_weights": label_weights}
    weights = None
    if label_weights and kind != "multi_label":
      weights = tf.gather(label_weights, features["label_ids"])
    elif texts_per_window:
      weights = tf.ones_like(features["example_weights"])
    if weights is not None:
      weighting["total_weight"] = train_step.loss_normalizer(weights, arguments)
      weighting["total_weight"] *= texts_per_window or 1.0
    return lambda batch, seed: (build(batch, True, seed, **weighting)[0], {})

  def predict(features):
    _, _, logits, outputs = build(features, False)
    return {
      "probabilities": outputs,
      "logits": logits,
      **train_step.input_index(features),
    }

  def evaluate(features):
    return evaluation_outputs(kind, build(features, False), features)

  return train_step.make_model_fn(arguments, training_loss, predict, evaluate)


def evaluation_outputs(
  kind: str, outputs: Sequence[Any], features: Mapping[str, Any]
) -> dict[str, Any]:
  """Loss and metrics of `create_model`'s outputs, for a `TPUEstimatorSpec`."""
  loss, per_example_loss, logits, _ = outputs
  evaluated = {
    "label_ids": features["label_ids"],
    "logits": logits,
    # Padding examples have 0, and do not count.
    "is_real_example": tf.cast(features["is_real_example"], tf.float32),
  }

  def metric_fn(per_example_loss, label_ids, logits, is_real_example):
    metrics = {"eval_loss": tf.metrics.mean(per_example_loss, is_real_example)}
    if kind in ("classification", "multiple_choice"):
      predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
      metrics["eval_accuracy"] = tf.metrics.accuracy(
        label_ids, predictions, is_real_example
      )
    return metrics

  return {
    "loss": loss,
    "eval_metrics": (metric_fn, [per_example_loss, *evaluated.values()]),
    # What further metrics need.
    "predictions": evaluated,
  }


class Predictor(
  classification_decoding.ClassifierPredictor, predictor.LoadedModel
):
  """Predicts labels of texts with a trained classifier.

  ```python
  predictor = run_classifier.Predictor("output/mrpc")
  predictor.predict([("He left.", "He went away.")])[0].label
  ```
  """

  record = RECORD

  @classmethod
  def build(cls, description, *arguments):
    """See base class; with the logits of windows, [B, 2, labels]."""
    logits, outputs = cls.build_with_logits(description, *arguments)
    if not LongTextSettings.of_model(description).has_windows:
      return outputs
    return tf.stack([outputs, logits], axis=1)

  @staticmethod
  def build_with_logits(description, config, inputs, compute):
    """Logits and outputs; multiple choice has one of each per choice."""
    problem = classification.problem_from_description(description)
    kind = problem.kind
    if kind == "multiple_choice":
      kind = "regression"
    num_labels = 1 if kind == "regression" else problem.num_labels
    num_rows = modeling.get_shape_list(inputs["input_ids"])[0]
    return create_model(
      config,
      is_training=False,
      **inputs,
      labels={
        "regression": tf.zeros([num_rows]),
        "multi_label": tf.zeros([num_rows, num_labels]),
        "classification": tf.zeros([num_rows], tf.int32),
      }[kind],
      num_labels=num_labels,
      use_one_hot_embeddings=False,
      kind=kind,
      compute=compute,
    )[-2:]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(ClassifierSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  settings = option.from_flags(ClassifierSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, processor, examples = prepare(settings, step)
  if step.is_dry_run:
    return
  settings = run.settings
  with run_report.started(receipt, run, examples.data_files) as outcome:
    dev_sets = classifier_inputs.write_dev_sets(run, processor, examples)
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      train_classifier(run, processor, examples.train, dev_sets)
    outcome.checkpoint = loop.select_checkpoint(run)
    thresholds = None
    if run.evaluates:
      outcome.found, thresholds = evaluate_sets(
        run, processor, dev_sets, outcome.checkpoint
      )
    if run.predicts:
      outcome.found.warnings += predict_sets(
        run, processor, examples, thresholds, outcome.checkpoint
      )
    outcome.num_examples = examples.num_examples


# Before the run


def prepare(
  asked: ClassifierSettings, step: Steps
) -> tuple[Run, DataProcessor, classifier_inputs.Examples]:
  """Loads the model and reads the examples; writes nothing."""
  settings = step("model", resolve.complete, asked)
  processor = step("task", classifier_inputs.make_processor, settings)
  run = step("run", set_up, settings, processor, step)
  examples = step("data", classifier_inputs.read_examples, settings, processor)
  step("output", check_output, settings, processor)
  run = step("texts", classifier_inputs.with_pairs, run, examples, instead=run)
  run = step(
    "classes", with_class_weights, run, processor, examples, instead=run
  )
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    step("labels", classifier_inputs.check_labels, processor, examples)
    check_texts = classifier_inputs.check_texts
    lengths = step("tokens", check_texts, run, processor, examples)
    training_checks.estimate_training(step, run, plan, lengths)
  return run, processor, examples


def set_up(
  settings: ClassifierSettings, processor: DataProcessor, step: Steps
) -> Run:
  """The run, see `runs.setup`."""
  run = runs.setup(settings, make_task(settings, processor), step)
  warn_if_untrained(run)
  return run


def make_task(settings: ClassifierSettings, processor: DataProcessor) -> Task:
  """Describes the task to the functions of `run`."""
  problem = processor.problem
  task = processor.model_task or settings.task
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"num_labels": problem.num_labels, "kind": problem.kind},
    features=classification_records.record_layout(
      settings.model.max_seq_length, problem, settings.cutting.has_windows
    ),
    metrics=[*processor.metrics, "loss"],
    description={"task": task, "kind": problem.kind, "labels": problem.labels},
    must_agree=["task", "kind", "labels", "do_lower_case", "long_texts"],
    unit="windows" if settings.cutting.has_windows else "examples",
    num_outputs=1 if problem.kind == "multiple_choice" else problem.num_labels,
    num_output_positions=1,  # [CLS]
  )


def check_output(
  settings: ClassifierSettings, processor: DataProcessor
) -> None:
  """Refuses an --output_dir in which data would be overwritten."""
  inputs = [*processor.files_read, settings.predict_file]
  runs.check_overwrites(settings, inputs)
  if settings.flags.do_predict:
    result_files.check_predict_file(settings.predict_file)


def warn_if_untrained(run: Run) -> None:
  """Warns if a model to evaluate or predict with has no output layer."""
  if run.start.trained and not checkpoint_files.open_reader(
    run.start.trained
  ).has_tensor("output_weights"):
    logging.warning(
      "%s: was not trained to classify. Its output layer is random, and so are"
      " metrics and predictions. Train it with --do_train, or name a model that"
      " was",
      run.start.trained,
    )


def with_class_weights(
  run: Run, processor: DataProcessor, examples: classifier_inputs.Examples
) -> Run:
  """Adds the label weights of --class_weights to the run."""
  weights = classifier_inputs.class_weights(
    run.settings.class_weights, processor.problem, examples.train
  )
  return run.with_arguments(label_weights=weights)


# Training, evaluation, prediction


def train_classifier(
  run: Run,
  processor: DataProcessor,  # names the metrics
  examples: Sequence[Example],
  dev_sets: Mapping[str, TextSet],
) -> None:
  """Trains the classifier; evaluates the dev set without a suffix meanwhile."""
  written = classifier_inputs.write_records(run, processor, "train", examples)
  num_rows, data = sum(written.num_rows), f"{len(examples)} examples"
  if run.settings.cutting.has_windows:
    data += f" in {num_rows} windows"
  if num_rows > len(examples):
    run = run.with_arguments(texts_per_window=len(examples) / num_rows)
  loop.train_on_records(
    run,
    written.path,
    num_rows,
    lambda checkpoint: (
      evaluate_set(run, processor, dev_sets[""], checkpoint).results
    ),
    data,
  )


def evaluate_set(
  run: Run,
  processor: DataProcessor,  # names the metrics
  dev_set: TextSet,
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> loop.Evaluation:
  """Evaluates a checkpoint on a dev set."""
  num_examples, num_rows = len(dev_set.examples), sum(dev_set.num_rows)
  logging.info("Evaluating on %d examples", num_examples)
  num_steps = -(-num_rows // run.flags.eval_batch_size)
  input_fn = training_records.record_input_fn(
    dev_set.path, run.task.features, **runs.input_options(run, False)
  )
  results, arrays = loop.evaluate(run, input_fn, num_steps, checkpoint)
  if num_rows > num_examples and arrays:
    label_ids, logits = (
      model_inputs.by_text(arrays[name], dev_set.num_rows)
      for name in ("label_ids", "logits")
    )
    join = classification_decoding.join_logits
    how = run.settings.cutting.join_windows
    arrays = {
      # Windows have the label of their text.
      "label_ids": np.array([ids for ids, *_ in label_ids]),
      "logits": np.array([join(rows, how) for rows in logits]),
    }
    losses = classification_decoding.losses(processor.problem, **arrays)
    loss = losses.mean(dtype=np.float32)
    results |= {"eval_loss": loss, "loss": loss}
    results.pop("eval_accuracy", None)  # of windows
  if not arrays:
    logging.info(
      "On a TPU only loss and accuracy are computed, and no predictions of the"
      " dev set are kept"
    )
    return loop.Evaluation(results, arrays)
  # Logits are [examples, labels], label ids [examples] or the same.
  scores = classification_report.evaluate(
    processor.metrics, arrays["label_ids"], arrays["logits"], processor.problem
  )
  matrix = scores.pop("confusion_matrix", None)
  for name, value in scores.items():
    results.setdefault(f"eval_{name}", np.float32(value))
  if matrix:
    results["confusion_matrix"] = matrix
    results["labels"] = json.dumps(processor.get_labels(), ensure_ascii=False)
  return loop.Evaluation(results, arrays)


def evaluate_sets(
  run: Run,
  processor: DataProcessor,
  # By the suffix of their results. The report is about the first one.
  dev_sets: Mapping[str, TextSet],
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> tuple[run_report.Findings, dict[str, float] | None]:
  """Evaluates a checkpoint on all dev sets; writes metrics and predictions."""
  problem, found = processor.problem, run_report.Findings()
  thresholds = None
  for suffix, dev_set in dev_sets.items():
    results, arrays = evaluate_set(run, processor, dev_set, checkpoint)
    predictions = None
    if arrays:
      rows = classification_decoding.probabilities(problem, arrays["logits"])
      predictions = classification_decoding.dev_predictions(
        problem, dev_set.examples, rows
      )
      if problem.kind == "multi_label" and not suffix:
        thresholds, tuned = classification_report.tune_thresholds(
          problem, **arrays
        )
        loop.store_thresholds(
          run, classifier_inputs.dev_path(run.settings), thresholds=thresholds
        )
        results |= tuned
    loop.write_metrics(run, results, checkpoint, suffix, predictions)
    found.results |= {f"{name}{suffix}": v for name, v in results.items()}
    if arrays:
      found.warnings += run_report.collapse_warning(
        *result_files.answers_to_compare(predictions)
      ) or never_predicted(problem, dev_set.examples, rows, thresholds)
    if arrays and run.flags.do_train and not suffix:
      found.sections = classification_report.sections(
        problem, dev_set.examples, **arrays, thresholds=thresholds
      )
      found.intervals = classification_report.intervals(
        problem, **arrays, names=processor.metrics
      )
  return found, thresholds


def never_predicted(
  problem: Problem,
  examples: Sequence[Example],
  rows: np.ndarray,
  thresholds: Mapping[str, float] | None,
) -> list[str]:
  """Warns of gold labels that are never predicted, see `predicted_label`."""
  if problem.kind not in ("classification", "multi_label"):
    return []
  labels = [
    classification_decoding.predicted_label(problem, row, thresholds)
    for row in rows
  ]
  if problem.kind == "multi_label":
    labels = itertools.chain.from_iterable(labels)
  return run_report.missing_labels_warning(
    labels,
    classifier_inputs.labels_of(examples),
    "Rare labels may need more examples, more epochs, or"
    " --class_weights=balanced",
  )


def predict_sets(
  run: Run,
  processor: DataProcessor,
  examples: classifier_inputs.Examples,
  # Of the labels of a multi-label problem; None for those of the model.
  thresholds: Mapping[str, float] | None,
  checkpoint: str | None,  # None for the model of --init_checkpoint
) -> list[str]:
  """Predicts and writes the labels of all test sets; returns warnings."""
  problem, predict_file = processor.problem, run.settings.predict_file
  cutting, length = run.settings.cutting, run.settings.model.max_seq_length
  if thresholds is None:
    thresholds = model_description.load(run.model_folder, RECORD).get(
      "thresholds"
    )
  warnings: list[str] = []
  for suffix, test_set in examples.predict_sets.items():
    records, results = f"predict{suffix}", f"test_results{suffix}"
    # Predictions of --predict_file have files of their own.
    if predict_file:
      results = result_files.predictions_name(predict_file)
      records = f"predict_{result_files.stem_of(predict_file)}"
    batch_size = run.flags.predict_batch_size
    written = classifier_inputs.write_records(
      run, processor, records, test_set, batch_size
    )
    found = loop.predict_texts(run, written, checkpoint)
    rows = (row["probabilities"] for row in found)
    if cutting.has_windows:
      pairs = ((row["probabilities"], row["logits"]) for row in found)
      rows = classification_decoding.join(
        problem, pairs, written.num_rows, cutting.join_windows
      )
    rows = [*rows]
    classification_decoding.write_predictions(
      run.path(results),
      test_set,
      rows,
      problem,
      thresholds,
      of_file=bool(predict_file),
      with_ids=run.settings.asks_for_ids,
      find_windows=functools.partial(
        classification_decoding.window_offsets, run.tokenizer, length, cutting
      ),
    )
    warnings += run_report.collapse_warning(
      classification_decoding.predicted_labels(problem, rows, thresholds)
    )
  return warnings


if __name__ == "__main__":
  app.run(main)
