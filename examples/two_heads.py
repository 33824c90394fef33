"""A task of your own in one file: a classifier with two heads.

  python -m examples.two_heads --train_file=train.tsv --dev_file=dev.tsv \
    --label_columns=topic,mood --init_checkpoint=bert-base-uncased \
    --do_train --do_eval --output_dir=output/two_heads

Each text has one label in each of two columns; both heads share an encoder. All
flags that the training scripts share work: checkpoints and resuming,
--eval_steps, --seeds, --precision, --gradient_accumulation_steps, --doctor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import model_json
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.data import input_pipeline, model_inputs, tables, tf_records
from bertlib.reporting import doctor, receipts, run_report, training_checks
from bertlib.settings.common import TrainingSettings
from bertlib.training import estimator_spec, step_plan
from bertlib.training import run as training
from bertlib.training.task import Run, Task


@dataclasses.dataclass(frozen=True)
class TwoHeadSettings(TrainingSettings):
  """The flags of all training scripts, and those of this one."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "vocab_file",
    "bert_config_file",
    "output_dir",
    "label_columns",
  )
  EXAMPLE: ClassVar[str] = "python -m examples.two_heads ..."

  train_file: str | None = option.text(None, "TSV file with a header.")
  dev_file: str | None = option.text(None, "TSV file to evaluate on.")
  text_column: str = option.text("text", "Name of the column of the text.")
  label_columns: Sequence[str] | None = option.text_list(
    None, "Names of the two label columns."
  )


def define_flags() -> None:
  """Defines the flags."""
  option.define(TwoHeadSettings)


# The data


class Example(NamedTuple):
  """A text and its two labels."""

  text: str
  labels: list[str]
  is_real: bool = True  # False if it fills the last batch on a TPU


def read_examples(
  settings: TwoHeadSettings, flag: str, is_needed: bool = False
) -> list[Example]:
  """Reads the examples of a file; none if the flag is not given."""
  path = getattr(settings, flag)
  if is_needed and not path:
    raise InputError(f"--{flag}: not given, but this run needs it")
  if not path:
    return []
  header, *rows = tables.read_tsv(path)
  columns = [settings.text_column, *settings.label_columns]
  for name in columns:
    if name not in header.texts:
      raise InputError(
        f"{path}: has no column {name!r}; it has {', '.join(header.texts)}"
      )
  text, *labels = map(header.texts.index, columns)
  return [Example(r.text(text), [r.label(c) for c in labels]) for r in rows]


def find_labels(
  settings: TwoHeadSettings, train_set: Sequence[Example]
) -> list[list[str]]:
  """Labels of each head, from the training data or the trained model."""
  if train_set:
    return [sorted(set(head)) for head in zip(*(e.labels for e in train_set))]
  trained = model_json.load_description(settings.run.output_dir)
  if "label_sets" not in trained:
    raise InputError("there is no trained model; give --train_file, --do_train")
  return trained["label_sets"]


def check_labels(path, examples, label_sets) -> None:
  """Refuses labels that the model does not have."""
  for example in examples:
    for label, known in zip(example.labels, label_sets):
      if label not in known:
        raise InputError(f"{path}: label {label!r} is not in the training data")


def write_records(run: Run, name: str, examples: Sequence[Example]) -> str:
  """Writes examples as records to --output_dir; returns the path."""
  path = run.path(f"{name}.tf_record")
  label_sets = run.task.description["label_sets"]
  length = run.settings.model.max_seq_length

  def encode(example):
    row = model_inputs.encode_pair(run.tokenizer, example.text, None, length)
    label_ids = list(map(list.index, label_sets, example.labels))
    more = {"label_ids": label_ids, "is_real_example": int(example.is_real)}
    return row._asdict() | more

  tf_records.write_records(path, map(encode, examples), run.task.features)
  return path


def read_records(run: Run, path: str, is_training: bool):
  """Makes the `input_fn` of a file of `write_records`."""
  return input_pipeline.record_input_fn(
    path, run.task.features, **training.input_options(run, is_training)
  )


# The model


def create_model(
  bert_config: modeling.BertConfig,
  features: dict[str, Any],
  num_labels: Sequence[int],
  is_training: bool = False,
  **options: Any,
) -> list[Any]:
  """Builds the model; logits of each head, float32 [B, labels]."""
  model = modeling.BertModel(
    bert_config,
    is_training,
    features["input_ids"],
    features["input_mask"],
    features["segment_ids"],
    **options,
  )
  logits = []
  for head, number in enumerate(num_labels):
    with tf.variable_scope(f"head_{head}"):
      logits.append(
        modeling.classification_logits(
          model.get_pooled_output(),
          number,
          dropout_prob=0.1 if is_training else 0.0,
          dropout_seed=options.get("dropout_seed"),
        )
      )
  return [tf.cast(of_head, tf.float32) for of_head in logits]


def model_fn_builder(
  bert_config: modeling.BertConfig,
  num_labels: Sequence[int],
  use_one_hot_embeddings: bool,
  **arguments: Any,
):
  """Makes the `model_fn`, with the sum of the losses of both heads."""
  arguments = estimator_spec.TrainingArguments(**arguments)

  def build(batch, **options):
    return create_model(
      bert_config,
      batch,
      num_labels,
      use_one_hot_embeddings=use_one_hot_embeddings,
      compute=arguments.compute,
      **options,
    )

  def loss_of(logits, label_ids):
    losses = [
      tf.reduce_mean(modeling.cross_entropy(of_head, label_ids[:, head])[0])
      for head, of_head in enumerate(logits)
    ]
    return tf.add_n(losses)

  def loss_fn(batch, dropout_seed):
    logits = build(batch, is_training=True, dropout_seed=dropout_seed)
    return loss_of(logits, batch["label_ids"]), {}

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features
    if mode == estimator_api.ModeKeys.TRAIN:
      return estimator_spec.train_spec(
        arguments, loss_fn, features, params, config
      )
    logits = build(features)
    predictions = {
      f"head_{head}": tf.argmax(of_head, -1, output_type=tf.int32)
      for head, of_head in enumerate(logits)
    }
    scaffold_fn = estimator_spec.restore_trained(arguments, config)
    if mode == estimator_api.ModeKeys.PREDICT:
      return estimator_api.TPUEstimatorSpec(
        mode=mode, predictions=predictions, scaffold_fn=scaffold_fn
      )
    is_real = tf.cast(features["is_real_example"], tf.float32)
    evaluated = [features["label_ids"], is_real, *predictions.values()]
    return estimator_api.TPUEstimatorSpec(
      mode=mode,
      loss=loss_of(logits, features["label_ids"]),
      eval_metrics=(accuracies, evaluated),
      scaffold_fn=scaffold_fn,
    )

  return model_fn


def accuracies(label_ids, is_real, *predictions) -> dict[str, Any]:
  """Accuracy of each head over the real examples; works on a TPU too."""
  return {
    f"head_{head}": tf.metrics.accuracy(label_ids[:, head], of_head, is_real)
    for head, of_head in enumerate(predictions)
  }


# The run


def make_task(
  settings: TwoHeadSettings, label_sets: Sequence[Sequence[str]]
) -> Task:
  """Describes the task for `bertlib.training.run`."""
  return Task(
    name="two_heads",
    model_fn_builder=model_fn_builder,
    model_arguments={"num_labels": list(map(len, label_sets))},
    features=tf_records.token_layout(settings.model.max_seq_length)
    | {
      "label_ids": tf_records.Feature((2,)),
      "is_real_example": tf_records.Feature(default=1),
    },
    metrics=["mean_accuracy", *settings.label_columns, "loss"],
    description={"label_sets": label_sets},
    must_agree=["label_sets"],
  )


def measure(run: Run, dev_file: str, num_examples: int, checkpoint: str | None):
  """Evaluates a checkpoint: accuracy of each head, and their mean."""
  num_steps = -(-num_examples // run.settings.run.eval_batch_size)
  input_fn = read_records(run, dev_file, is_training=False)
  results, _ = training.evaluate(run, input_fn, num_steps, checkpoint)
  of_heads = [results.pop(f"head_{head}") for head in range(2)]
  results |= zip(run.settings.label_columns, of_heads)
  return results | {"mean_accuracy": np.mean(of_heads)}


def doctor_checks(settings: TwoHeadSettings, doctor: doctor.Doctor) -> None:
  """Makes the checks of --doctor."""
  train_set = doctor.check("data", read_examples, settings, "train_file")
  labels = doctor.check("labels", find_labels, settings, train_set)
  task = doctor.unless_skipped(labels, make_task, settings, labels)
  training_checks.check_setup(doctor, settings, task)


def main(_) -> None:
  """Trains and evaluates."""
  settings = option.from_flags(TwoHeadSettings)
  if settings.receipt.doctor:
    doctor.diagnose(settings, doctor_checks)
    return
  receipt = receipts.begin(__file__, settings)
  training.check_actions(settings.run)
  evaluates = bool(settings.run.do_eval or settings.run.eval_steps)
  train_set = read_examples(settings, "train_file", settings.run.do_train)
  dev_set = read_examples(settings, "dev_file", evaluates)
  label_sets = find_labels(settings, train_set)
  check_labels(settings.dev_file, dev_set, label_sets)
  run = training.setup(settings, make_task(settings, label_sets))
  training.check_start(run)
  with training.lock_output_dir(run.settings):
    data_files = filter(None, [settings.train_file, settings.dev_file])
    receipt.start(run.settings, data_files)
    padded = training.fill_last_batch(
      run,
      dev_set,
      settings.run.eval_batch_size,
      dev_set[0]._replace(is_real=False) if dev_set else None,
    )
    dev_file = write_records(run, "dev", padded)
    evaluate = functools.partial(measure, run, dev_file, len(dev_set))
    if settings.run.do_train:
      training.write_model_files(run)
    if run.seeds:
      training.train_seeds(run)
    elif settings.run.do_train:
      path = write_records(run, "train", train_set)
      steps = step_plan.count_steps(settings.run, len(train_set), "texts")
      input_fn = read_records(run, path, is_training=True)
      training.train(run, input_fn, steps, f"{len(train_set)} texts", evaluate)
    if not run.is_chief:
      return
    checkpoint, results = training.select_checkpoint(run), {}
    if settings.run.do_eval:
      results = evaluate(checkpoint)
      training.write_metrics(run, results, checkpoint)
    receipt.finish(results, checkpoint)
    if settings.run.do_train:
      run_report.write_report(run, run_report.Findings(results))


if __name__ == "__main__":
  define_flags()
  app.run(main)
