"""Fine-tunes BERT to label texts, scores it, and labels texts with it.

Also the module to call from Python: `Predictor` loads a trained model once
and labels whatever it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.classifier import ClassifierSettings

  app.parse_flags(ClassifierSettings, imports_tensorflow=True)

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
import optimization
import tokenization
from bertlib import app, estimator_api, files
from bertlib.checkpoints import finding, model_json, predictor
from bertlib.data import (
  class_weights,
  classification,
  classification_records,
  model_inputs,
  record_check,
  tf_records,
)
from bertlib.data.classification import (  # noqa: F401 (their names are also here)
  ChoiceExample,
  ColaProcessor,
  DataProcessor,
  InputExample,
  MnliProcessor,
  MrpcProcessor,
  PaddingInputExample,
  Problem,
  XnliProcessor,
)
from bertlib.data.classification_records import (  # noqa: F401
  InputFeatures,
  convert_examples_to_features,
  convert_single_example,
  file_based_convert_examples_to_features,
  file_based_input_fn_builder,
  input_fn_builder,
)
from bertlib.data.model_inputs import _truncate_seq_pair  # noqa: F401
from bertlib.metrics import (
  classification_results,
  classification_scores,
  result_files,
)
from bertlib.metrics.classification_scores import Prediction, prediction
from bertlib.reporting import (
  doctor,
  receipts,
  report_sections,
  run_report,
  task_checks,
  training_checks,
)
from bertlib.settings import option
from bertlib.settings.classifier import ClassifierSettings
from bertlib.training import (
  classifier_inputs,
  devices,
  estimator_spec,
  model_selection,
  multi_run,
  session_hooks,
  setup,
  training_run,
)

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
):
  """The encoder with an output layer on its pooled output.

  Args:
    bert_config: the encoder's sizes.
    is_training: whether dropout is on.
    input_ids: int32 [B, S], or [B, L, S] for multiple choice.
    input_mask: likewise.
    segment_ids: likewise.
    labels: int32 [B]; float32 [B] for regression; float32 [B, L], 1 for each
      that it has, where a text has any number of labels.
    num_labels: L; 1 for regression.
    use_one_hot_embeddings: see `modeling.BertModel`.
    kind: see `classification.Problem`.
    dropout_seed: see `modeling.dropout`.
    compute: how to compute; None for `modeling.Compute()`.
    label_weights: L, what an example of each label counts in the loss; where a
      text has any number of labels, what having it counts. None for all alike.
    total_weight: float32 [], by which the sum of weighted losses is divided;
      None for the sum of the weights.

  Returns:
    loss [], per_example_loss [B] (without weights), logits [B, L] and
    probabilities [B, L], all float32. A regression's loss is the squared error,
    and in place of probabilities it gives the number.
  """
  has_choices = kind == "multiple_choice"
  if has_choices:  # [B * L, S], a row a choice
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
    dropout_prob=0.1 if is_training else 0.0,
    dropout_seed=dropout_seed,
  )
  logits = tf.reshape(tf.cast(logits, tf.float32), [-1, num_labels])
  if kind == "regression":
    losses = tf.square(logits[:, 0] - labels)
    return tf.reduce_mean(losses), losses, logits, logits
  if kind == "multi_label":
    losses = tf.reduce_mean(label_losses(logits, labels), axis=-1)
    weighted = label_losses(logits, labels, label_weights)
    return tf.reduce_mean(weighted), losses, logits, tf.sigmoid(logits)
  losses, log_probs = modeling.cross_entropy(logits, labels)
  loss = tf.reduce_mean(losses)
  if label_weights:
    weights = tf.gather(tf.constant(label_weights, tf.float32), labels)
    loss = modeling.weighted_mean(losses, weights, total_weight)
  return loss, losses, logits, tf.exp(log_probs)


def label_losses(logits, labels, label_weights=None):
  """Binary cross entropy of each label by itself.

  Args:
    logits: float32 [B, L].
    labels: float32 [B, L], 1 for each that a text has, else 0.
    label_weights: L, what having it counts; None for 1.

  Returns:
    float32 [B, L].
  """
  weights = [1.0] * logits.shape[-1] if label_weights is None else label_weights
  return tf.nn.weighted_cross_entropy_with_logits(
    labels, logits, tf.constant(weights, tf.float32)
  )


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
  evaluated: dict[str, Any] | None = None,
  label_weights: Sequence[float] | None = None,
  **more_arguments: Any,
):
  """The `model_fn` of a classifier, for TPUEstimator.

  `num_labels`, `kind` and `label_weights`, which only training uses, are those
  of `create_model`. `evaluated` gets, from an evaluation that is not on a TPU,
  `logits` [A, L], `label_ids` [A] or [A, L] and `is_real_example` [A] of the
  whole set. `use_one_hot_embeddings` is that of `modeling.BertModel`. All other
  arguments are `estimator_spec.TrainingArguments`; more of these may be given
  by name.

  Returns:
    A function of features, labels, mode, params and config.
  """
  arguments = estimator_spec.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features

    def build(batch, is_training, dropout_seed=None, **weighting):
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

    if mode == estimator_api.ModeKeys.TRAIN:
      weighting = {"label_weights": label_weights}
      if label_weights and kind != "multi_label":
        weights = tf.gather(tf.constant(label_weights), features["label_ids"])
        weighting["total_weight"] = estimator_spec.loss_normalizer(
          weights, arguments
        )
      return estimator_spec.train_spec(
        arguments,
        lambda batch, seed: (build(batch, True, seed, **weighting)[0], {}),
        features,
        params,
        config,
      )

    total_loss, per_example_loss, logits, probabilities = build(features, False)
    scaffold_fn = estimator_spec.restore_trained(arguments, config)
    if mode == estimator_api.ModeKeys.PREDICT:
      predictions = {"probabilities": probabilities}
      if "place" in features:
        predictions["place"] = features["place"]
      return estimator_api.TPUEstimatorSpec(
        mode=mode, predictions=predictions, scaffold_fn=scaffold_fn
      )

    label_ids = features["label_ids"]
    is_real_example = tf.cast(features["is_real_example"], tf.float32)

    def metric_fn(per_example_loss, label_ids, logits, is_real_example):
      metrics = {
        "eval_loss": tf.metrics.mean(per_example_loss, is_real_example)
      }
      if kind in ("classification", "multiple_choice"):
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
      hooks.append(session_hooks.CollectHook(kept, into=evaluated))
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


class Predictor(predictor.LoadedModel):
  """A trained classifier, loaded once, that labels texts.

  ```python
  predictor = run_classifier.Predictor("output/mrpc")
  predictor.predict([("He left.", "He went away.")])[0].label
  ```
  """

  script = "run_classifier"
  purpose = "labels texts"

  @property
  def labels(self) -> list[str]:
    """The label set; empty for regression."""
    return self.description["labels"]

  @property
  def problem(self) -> Problem:
    """What was learnt."""
    return classification.problem_of(self.description)

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class; of choices, the weight of each by itself."""
    problem = classification.problem_of(description)
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
    )[-1]

  def predict(
    self, texts: Iterable[str | tuple[str, str] | Sequence[tuple[str, str]]]
  ) -> list[Prediction]:
    """Labels texts.

    Args:
      texts: each a text, or a pair of texts for tasks on pairs, or a list with
        a pair for each choice.

    Returns:
      A prediction for each, in order.
    """
    problem = self.problem
    has_choices = problem.kind == "multiple_choice"
    pairs = []
    for text in texts:
      pairs += text if has_choices else [text]
    encoded = [
      model_inputs.encode_pair(
        self.tokenizer,
        *((pair, None) if isinstance(pair, str) else pair),
        self.description["max_seq_length"],
      )._asdict()
      for pair in pairs
    ]
    rows = self.run(encoded)
    if has_choices:
      logits = np.reshape(rows, [-1, problem.num_labels])
      rows = classification_scores.probabilities(problem, logits)
    thresholds = self.description.get("thresholds")
    return [prediction(problem, row, thresholds) for row in rows]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags.

  Args:
    required: whether parsing fails where a flag is missing that the command
      needs; False for other programs that use this module.
  """
  option.define(ClassifierSettings, required=required)


class Start(NamedTuple):
  """What a run begins with, all of it checked.

  Attributes:
    settings: with nothing left to decide.
    config: the encoder's sizes.
    tokenizer: gives the ids.
    trained: the checkpoint that has all of the model; None for a new one.
    processor: reads the data.
    selection: how the best weights are found.
    seeds: of `--seeds`.
    model: what describes the model.
    examples: the data.
    data_files: that these are from.
    label_weights: see `create_model`.
  """

  settings: ClassifierSettings
  config: modeling.BertConfig
  tokenizer: tokenization.FullTokenizer
  trained: str | None
  processor: DataProcessor
  selection: model_selection.Selection
  seeds: list[int]
  model: dict[str, Any]
  examples: classifier_inputs.Examples
  data_files: Iterable[str]
  label_weights: list[float] | None


def main(_) -> None:
  """Does what the flags say: trains, scores, labels."""
  settings = option.from_flags(ClassifierSettings)
  if settings.receipt.doctor:
    doctor.diagnose(settings, examine)
    return
  receipt = receipts.begin(__file__, settings)
  start = prepare(settings, doctor.simply)
  settings = start.settings
  training_checks.check_start(
    settings,
    start.config,
    start.trained,
    lambda: check_weights(
      settings, start.trained, start.config, start.processor
    ),
  )
  with training_run.lock_output_dir(settings):
    carry_out(settings, start, receipt)


def carry_out(
  settings: ClassifierSettings, start: Start, receipt: receipts.Receipt
) -> None:
  """Trains, evaluates and predicts as the flags say, all of it checked.

  Args:
    settings: of the command.
    start: what the run begins with.
    receipt: of the run.
  """
  config, tokenizer, examples = start.config, start.tokenizer, start.examples
  processor, selection = start.processor, start.selection
  problem = processor.problem
  receipt.start(settings, start.data_files)
  devices.log_devices(settings.devices, settings.compute)
  if settings.run.do_train:
    model = start.model | {
      "has_pairs": classifier_inputs.has_pairs(examples.train)
    }
    model_json.claim(
      settings.run.output_dir, model, config, settings.model.vocab_file
    )
  if start.seeds:
    multi_run.train_seeds(
      settings.run.output_dir,
      start.seeds,
      selection.metric,
      ["--nodo_predict", *training_run.choice_flags(settings.compute)],
    )

  num_train_steps = classifier_inputs.count_steps(settings, len(examples.train))
  evaluated: dict[str, Any] = {}
  estimator = build_estimator(
    settings, config, problem, num_train_steps, evaluated, start.label_weights
  )
  evaluations = {
    ending: functools.partial(
      evaluate,
      settings,
      estimator,
      classifier_inputs.write_and_read(
        settings,
        problem,
        tokenizer,
        f"eval{ending}",
        of_set,
        settings.run.eval_batch_size,
      )[0],
      len(of_set),
      processor,
      evaluated,
    )
    for ending, of_set in examples.eval_sets.items()
  }
  lengths = None
  if settings.run.do_train and not start.seeds:
    input_fn, lengths = classifier_inputs.write_and_read(
      settings,
      problem,
      tokenizer,
      "train",
      examples.train,
      settings.run.train_batch_size,
      finding.steps_done(settings.run.output_dir),
      settings.run.group_by_length,
    )
    training_run.train(
      settings,
      estimator,
      input_fn,
      num_train_steps,
      f"{len(examples.train)} examples",
      "examples",
      selection,
      evaluations.get(""),
      functools.partial(
        record_check.find,
        [os.path.join(settings.run.output_dir, "train.tf_record")],
        classification_records.record_layout(
          settings.model.max_seq_length, problem
        ),
      ),
    )

  checkpoint = training_run.checkpoint_to_use(settings)
  results, sections, warnings = {}, [], []
  if settings.run.do_eval:
    results, sections, warnings = score_sets(
      settings, problem, evaluations, examples.eval_sets, evaluated, checkpoint
    )
  warnings += label_sets(
    settings, problem, tokenizer, estimator, examples.predict_sets, checkpoint
  )
  if settings.run.do_train:
    run_report.write_report(
      settings, results, selection, sections, lengths, warnings
    )
  receipt.finish(results, checkpoint)


# What is asked for, and whether it can be


def prepare(settings: ClassifierSettings, check: doctor.Check) -> Start:
  """Checks and reads all that a run needs; nothing is written yet.

  Whatever is wrong with folders and data is said now, not after training.

  Args:
    settings: of the command.
    check: makes each check.

  Returns:
    What the run begins with.
  """
  seeds = check("flags", check_flags, settings)
  model_files = check("model", setup.fetch_model, settings.model)
  decided = check("devices", setup.find_devices, settings)
  settings = setup.resolved(settings, model_files, decided)
  config = check("config", setup.load_config, model_files)
  tokenizer = check("vocabulary", setup.load_tokenizer, model_files, config)
  trained = check("checkpoint", setup.find_model, settings)
  processor = check("task", classifier_inputs.make_processor, settings)
  selection = check("scores", read_selection, settings, processor)
  model = check("folder", describe_model, settings, config, processor, seeds)
  with files.files_read() as data_files:
    examples = check(
      "data", classifier_inputs.read_examples, settings, processor
    )
  check(
    "texts",
    classifier_inputs.check_pairs,
    settings,
    config,
    processor,
    examples,
  )
  check(
    "encoding",
    classifier_inputs.check_encoding,
    processor,
    data_files,
    after=examples,
  )
  check("output", check_output, settings, data_files, after=examples)
  label_weights = None
  if settings.class_weights:
    label_weights = check(
      "classes",
      lambda task, data: class_weights.read(
        settings.class_weights, task.problem, data.train
      ),
      processor,
      examples,
    )
  return Start(
    settings,
    config,
    tokenizer,
    trained,
    processor,
    selection,
    seeds,
    model,
    examples,
    data_files,
    label_weights,
  )


def examine(settings: ClassifierSettings, doctor: doctor.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    settings: of the command.
    doctor: makes each check.
  """
  check = doctor.check
  start = prepare(settings, check)
  settings = start.settings
  config, processor, examples = start.config, start.processor, start.examples
  check("weights", check_weights, settings, start.trained, config, processor)
  check("labels", task_checks.check_class_labels, processor, examples)
  lengths = check(
    "tokens",
    task_checks.check_texts,
    settings,
    config,
    start.tokenizer,
    processor,
    examples,
  )
  training_checks.check_training(
    settings,
    doctor,
    config,
    lengths,
    functools.partial(classifier_inputs.count_steps, settings),
  )


def check_flags(settings: ClassifierSettings) -> list[int]:
  """Refuses flags that do not go together; gives the seeds of `--seeds`."""
  doctor.check_actions(settings)
  return training_run.read_seeds(settings.run)


def check_output(
  settings: ClassifierSettings, data_files: Iterable[str]
) -> None:
  """Refuses an --output_dir where data would be overwritten."""
  doctor.check_output_dir(
    settings,
    ["*.tf_record", "predictions*", "test_results*"],
    [*data_files, settings.predict_file],
  )


def read_selection(
  settings: ClassifierSettings, processor: DataProcessor
) -> model_selection.Selection:
  """How the best weights are found, by scores of the task."""
  return training_run.read_selection(settings.run, [*processor.scores, "loss"])


def describe_model(
  settings: ClassifierSettings,
  config: modeling.BertConfig,
  processor: DataProcessor,
  seeds: Sequence[int],
) -> dict[str, Any]:
  """What describes the model; refuses a folder of another.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    processor: of the task.
    seeds: of `--seeds`, each of which has a folder of its own.

  Returns:
    What `model_json.claim` takes.

  Raises:
    InputError: --output_dir is another model's, or not as --resume wants it.
  """
  problem = processor.problem
  model = {
    "script": "run_classifier",
    "task": processor.model_task or classifier_inputs.task_name(settings),
    "kind": problem.kind,
    "labels": problem.labels,
    "max_seq_length": settings.model.max_seq_length,
    "do_lower_case": settings.model.do_lower_case,
    **settings.compute.choices,
  }
  num_outputs = 1 if problem.kind == "multiple_choice" else problem.num_labels
  model_json.check(
    settings.run.output_dir,
    model,
    config,
    ["script", "task", "kind", "labels", "do_lower_case"],
    num_outputs,
    settings.model.vocab_file,
  )
  if settings.run.do_train and not seeds:
    finding.check_resume(settings.run.resume, settings.run.output_dir)
  return model


def check_weights(
  settings: ClassifierSettings,
  trained: str | None,
  config: modeling.BertConfig,
  processor: DataProcessor,
) -> None:
  """Refuses a checkpoint that is damaged, or not of this model."""
  problem = processor.problem
  training_checks.check_weights(
    trained or settings.model.init_checkpoint,
    make_model_fn(settings, config, problem),
    classification_records.record_layout(
      settings.model.max_seq_length, problem
    ),
    settings.run.output_dir,
  )


def score_sets(
  settings: ClassifierSettings,
  problem: Problem,
  evaluations: Mapping[str, model_selection.Evaluate],
  eval_sets: Mapping[str, Sequence[InputExample | ChoiceExample]],
  evaluated: Mapping[str, np.ndarray],
  checkpoint: str | None,
) -> tuple[dict[str, Any], list[str], list[str]]:
  """Scores a checkpoint on all sets, and writes their results.

  Args:
    settings: of the command.
    problem: what was learnt.
    evaluations: score a checkpoint on each set.
    eval_sets: the sets, by the ending of their results.
    evaluated: what `evaluate` has of the set that it scored last.
    checkpoint: its path; None where the model is that of --init_checkpoint.

  Returns:
    The results of all sets by name, what a report shows of the first set, and
    warnings for the report.
  """
  all_results: dict[str, Any] = {}
  sections: list[str] = []
  warnings: list[str] = []
  for ending, examples in eval_sets.items():
    results = evaluations[ending](checkpoint)
    if evaluated and not ending:
      if problem.kind == "multi_label":
        model_json.add_to_description(
          settings.run.output_dir,
          thresholds=classification_results.tune(problem, evaluated, results),
        )
      sections = report_sections.sections(
        problem, examples, evaluated["label_ids"], evaluated["logits"]
      )
    if evaluated:
      rows = classification_scores.probabilities(problem, evaluated["logits"])
      warnings += run_report.point_out_collapse(
        classification_scores.answers(problem, rows),
        classification_scores.gold_answers(examples),
      )
    training_run.write_dev_scores(settings, results, checkpoint, ending)
    result_files.write_results(
      os.path.join(settings.run.output_dir, f"eval_results{ending}.txt"),
      results,
    )
    all_results |= {f"{name}{ending}": of for name, of in results.items()}
  return all_results, sections, warnings


def label_sets(
  settings: ClassifierSettings,
  problem: Problem,
  tokenizer: tokenization.FullTokenizer,
  estimator,
  predict_sets: Mapping[str, Sequence[InputExample | ChoiceExample]],
  checkpoint: str | None,
) -> list[str]:
  """Labels all sets, and writes the predictions.

  Those for --predict_file go to files of their own, beside those for the test
  set.

  Args:
    settings: of the command.
    problem: what was learnt.
    tokenizer: gives the ids.
    estimator: the model.
    predict_sets: the sets, by the ending of their results.
    checkpoint: its path; None where the model is that of --init_checkpoint.

  Returns:
    Warnings for the report.
  """
  thresholds = model_json.load_description(settings.run.output_dir).get(
    "thresholds"
  )
  warnings: list[str] = []
  for ending, examples in predict_sets.items():
    records, results = f"predict{ending}", f"test_results{ending}"
    if settings.predict_file:
      results = result_files.predictions_name(settings.predict_file)
      records = f"predict_{results.removesuffix('_predictions')}"
    input_fn, _ = classifier_inputs.write_and_read(
      settings,
      problem,
      tokenizer,
      records,
      examples,
      settings.run.predict_batch_size,
      by_length=True,
    )
    found = session_hooks.follow(
      estimator.predict(input_fn, checkpoint_path=checkpoint),
      len(examples),
      "examples",
    )
    rows = [row["probabilities"] for row in tf_records.in_order(found)]
    rows = rows[: len(examples)]  # a TPU has padding after them
    classification_results.write_predictions(
      os.path.join(settings.run.output_dir, results),
      examples,
      rows,
      problem,
      thresholds,
      show=bool(settings.predict_file),
    )
    warnings += run_report.point_out_collapse(
      classification_scores.answers(problem, rows, thresholds)
    )
  return warnings


def build_estimator(
  settings: ClassifierSettings,
  config: modeling.BertConfig,
  problem: Problem,
  num_train_steps: int,
  evaluated: dict[str, Any],
  label_weights: Sequence[float] | None,
):
  """The Estimator of the model that the flags and the data describe.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    problem: what is learnt.
    num_train_steps: length of training; 0 where there is none.
    evaluated: see `model_fn_builder`.
    label_weights: see `create_model`.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  compute, options = training_run.plan_training(
    settings, training_run.read_execution(settings), config, num_train_steps
  )
  model_fn = make_model_fn(
    settings,
    config,
    problem,
    num_train_steps,
    evaluated,
    label_weights,
    compute,
    options,
  )
  return training_run.build_estimator(
    settings,
    model_fn,
    settings.run.output_dir,
    settings.run.train_batch_size,
    settings.run.eval_batch_size,
    settings.run.predict_batch_size,
  )


def make_model_fn(
  settings: ClassifierSettings,
  config: modeling.BertConfig,
  problem: Problem,
  num_train_steps: int = 0,
  evaluated: dict[str, Any] | None = None,
  label_weights: Sequence[float] | None = None,
  compute: modeling.Compute | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` as the flags want it, see `model_fn_builder`."""
  return model_fn_builder(
    bert_config=config,
    num_labels=problem.num_labels,
    init_checkpoint=settings.model.init_checkpoint,
    learning_rate=settings.optimizer.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(
      num_train_steps * settings.optimizer.warmup_proportion
    ),
    use_tpu=settings.devices.on_tpu,
    use_one_hot_embeddings=settings.devices.on_tpu,
    kind=problem.kind,
    seed=settings.run.seed,
    log_steps=settings.run.log_steps,
    evaluated=evaluated,
    compute=compute,
    options=options,
    label_weights=label_weights,
  )


def evaluate(
  settings: ClassifierSettings,
  estimator,
  input_fn,
  num_examples: int,
  processor: DataProcessor,
  evaluated: dict[str, np.ndarray],
  checkpoint: str | None,
) -> dict[str, Any]:
  """Scores a checkpoint on a set.

  Args:
    settings: of the command.
    estimator: the model.
    input_fn: of the set.
    num_examples: of the set.
    processor: knows the task's scores.
    evaluated: as `model_fn_builder` fills it; empty on a TPU.
    checkpoint: its path; None where the model is that of --init_checkpoint.

  Returns:
    Results by key, for the results file.
  """
  steps = (
    -(-num_examples // settings.run.eval_batch_size)
    if settings.devices.on_tpu
    else None
  )
  logging.info("Evaluating on %d examples", num_examples)
  results = estimator.evaluate(input_fn, steps, checkpoint_path=checkpoint)
  if not evaluated:
    logging.info("On a TPU only loss and accuracy are scored")
    return results
  real = evaluated.pop("is_real_example") > 0
  evaluated.update({name: values[real] for name, values in evaluated.items()})
  scores = classification_scores.score(
    processor.scores,
    evaluated["label_ids"],
    evaluated["logits"],
    processor.problem,
  )
  matrix = scores.pop("confusion_matrix", None)
  for name, value in scores.items():
    results.setdefault(f"eval_{name}", np.float32(value))
  if matrix:
    results["confusion_matrix"] = matrix
    results["labels"] = json.dumps(processor.get_labels(), ensure_ascii=False)
  return results


if __name__ == "__main__":
  app.run(main)
