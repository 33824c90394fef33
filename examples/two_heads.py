"""A task of your own in one file: a classifier with two heads.

  python -m examples.two_heads --train_file=train.tsv --dev_file=dev.tsv \
    --label_columns=topic,mood --init_checkpoint=bert-base-uncased \
    --do_train --do_eval --output_dir=output/two_heads
  python -m examples.two_heads --do_predict --predict_file=texts.txt ...
  python export_model.py --model_dir=output/two_heads --export_dir=exported \
    --task_module=examples.two_heads

Each text has one label in each of two columns; both heads share an encoder. All
flags that the training scripts share work: checkpoints and resuming,
--eval_steps, --seeds, --precision, --gradient_accumulation_steps, --doctor.
`report.py` compares runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import input_pipeline, model_inputs, tables, tf_records
from bertlib.exchange import resolve
from bertlib.export import signatures
from bertlib.io import files, result_files, text_files
from bertlib.reporting import receipts, run_report
from bertlib.settings import model_description
from bertlib.settings.training import TrainingSettings
from bertlib.task.task_record import PredictExample, Task, TaskRecord
from bertlib.training import loop, runs, step_plan, train_step
from bertlib.training.runs import Run


@dataclasses.dataclass(frozen=True)
class TwoHeadSettings(TrainingSettings):
  """The flags of all training scripts, and those of this one."""

  REQUIRED = (*TrainingSettings.REQUIRED, "label_columns")
  BROUGHT_BY_MODEL = (*TrainingSettings.BROUGHT_BY_MODEL, "label_columns")
  SCRIPT = "two_heads"
  EXAMPLE = "python -m examples.two_heads ..."

  train_file: str | None = option.text(None, "Table to train on.")
  dev_file: str | None = option.text(None, "Table to evaluate on.")
  predict_file: str | None = option.text(None, "A text per line to label.")
  text_column: str = option.text(
    "text", "Name of the column of the text.", kept=True
  )
  label_columns: Sequence[str] | None = option.text_list(
    None, "Names of the two label columns.", kept=True
  )


def define_flags() -> None:
  """Defines the flags."""
  option.define(TwoHeadSettings)


# The data


class Example(NamedTuple):
  """A text and its two labels."""

  text: str
  labels: Sequence[str] = ()


def read_examples(
  settings: TwoHeadSettings, flag: str, is_needed: bool = False
) -> list[Example]:
  """Reads the examples of a file; none if the flag is not given."""
  path = getattr(settings, flag)
  if is_needed and not path:
    raise InputError(f"--{flag}: not given, but this run needs it")
  if not path:
    return []
  if flag == "predict_file":
    return [Example(line.strip()) for line in text_files.read_lines(path)]
  columns = [("--label_columns", name) for name in settings.label_columns]
  table = tables.read_table(
    path, [("--text_column", settings.text_column), *columns]
  )
  text, *labels = table.columns
  return [
    Example(row.text(text), [row.label(column) for column in labels])
    for row in table.rows
  ]


def read_data(settings: TwoHeadSettings) -> list[list[Example]]:
  """Reads the examples to train on, to evaluate on, and to predict."""
  actions = settings.flags
  return [
    read_examples(settings, "train_file", actions.do_train),
    read_examples(settings, "dev_file", actions.evaluates),
    read_examples(settings, "predict_file", actions.do_predict),
  ]


def find_labels(
  settings: TwoHeadSettings, data: Sequence[Sequence[Example]]
) -> list[list[str]]:
  """Labels of each head, from the training data or the trained model."""
  train_set, dev_set, _ = data
  if train_set:
    labels = zip(*(example.labels for example in train_set))
    label_sets = [sorted(set(head)) for head in labels]
  else:
    trained = model_description.load(settings.flags.output_dir, RECORD)
    if "label_sets" not in trained:
      raise InputError(
        "there is no trained model; give --train_file, --do_train"
      )
    label_sets = trained["label_sets"]
  check_labels(settings.dev_file, dev_set, label_sets)
  return label_sets


def check_labels(path, examples, label_sets) -> None:
  """Refuses labels that the model does not have."""
  for example in examples:
    for label, known in zip(example.labels, label_sets):
      if label not in known:
        raise InputError(f"{path}: label {label!r} is not in the training data")


def make_input_fn(
  run: Run, name: str, examples: Sequence[Example], batch_size: int
):
  """Writes examples as records; the `input_fn` that reads them."""
  path = runs.records_path(run, name)
  length = run.settings.model.max_seq_length
  label_sets = run.task.description["label_sets"]

  def encode(example):
    row = model_inputs.encode_pair(run.tokenizer, example.text, None, length)
    ids = [*map(list.index, label_sets, example.labels)] or [0, 0]
    return row._asdict() | {"label_ids": ids}

  if name != "train":
    examples = runs.fill_last_batch(run, examples, batch_size)
  tf_records.write_records(path, map(encode, examples), run.task.features)
  options = runs.input_options(run, is_training=name == "train")
  return input_pipeline.record_input_fn(path, run.task.features, **options)


# The model


def create_model(
  bert_config: modeling.BertConfig,
  features: dict[str, Any],
  num_labels: Sequence[int],
  is_training: bool = False,
  **options: Any,
) -> list[Any]:
  """Builds the model; logits of each head, float32 [B, labels]."""
  inputs = [features[name] for name in model_inputs.TOKEN_FEATURES]
  model = modeling.BertModel(bert_config, is_training, *inputs, **options)
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
  arguments = train_step.TrainingArguments(**arguments)
  build = functools.partial(
    create_model,
    bert_config,
    num_labels=num_labels,
    use_one_hot_embeddings=use_one_hot_embeddings,
    compute=arguments.compute,
  )

  def loss_fn(batch, dropout_seed):
    logits = build(batch, is_training=True, dropout_seed=dropout_seed)
    losses = [
      tf.reduce_mean(modeling.cross_entropy(of_head, label_ids)[0])
      for of_head, label_ids in zip(
        logits, tf.unstack(batch["label_ids"], axis=1)
      )
    ]
    return tf.add_n(losses), {}

  def predict(features):
    best = [tf.argmax(of_head, -1) for of_head in build(features)]
    return {"label_ids": tf.stack(best, axis=1)}

  return train_step.make_model_fn(arguments, lambda _: loss_fn, predict)


class ExportedModel(signatures.SignatureModel):
  """The model in a SavedModel: a label of each head."""

  graph = None

  def build(self, inputs):
    """See base class."""
    num_labels = map(len, self.description["label_sets"])
    return create_model(
      self.config, inputs, [*num_labels], compute=self.compute
    )

  def ids(self, inputs):
    """See base class."""
    return {
      f"label_{head}": tf.gather(tf.constant(labels), tf.argmax(logits, -1))
      for head, (labels, logits) in enumerate(
        zip(self.description["label_sets"], self.run(inputs))
      )
    }


# The run


RECORD = TaskRecord(
  script="two_heads",
  command="python -m examples.two_heads",
  required={"label_sets": [[str]]},
  predict=PredictExample("texts.txt", "Labels of the lines of a file:"),
  export=lambda: ExportedModel,
)


def make_task(
  settings: TwoHeadSettings, label_sets: Sequence[Sequence[str]]
) -> Task:
  """Describes the task for `bertlib.training.runs`."""
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"num_labels": list(map(len, label_sets))},
    features=tf_records.token_layout(settings.model.max_seq_length)
    | {"label_ids": tf_records.Feature((2,))},
    metrics=["mean_accuracy", *settings.label_columns],
    description={"label_sets": label_sets},
    must_agree=["label_sets"],
  )


def predict(
  run: Run,
  name: str,
  examples: Sequence[Example],
  batch_size: int,
  checkpoint: str | None,
) -> list[list[str]]:
  """The labels of each text."""
  input_fn = make_input_fn(run, name, examples, batch_size)
  rows = loop.predict(run, input_fn, len(examples), checkpoint, batch_size)
  label_sets = run.task.description["label_sets"]
  return [
    [known[i] for known, i in zip(label_sets, row["label_ids"])] for row in rows
  ]


def measure(run: Run, dev_set: Sequence[Example], checkpoint: str | None):
  """Accuracy of each head and their mean, and the predictions."""
  batch_size = run.flags.eval_batch_size
  predicted = predict(run, "dev", dev_set, batch_size, checkpoint)
  predictions = [
    result_files.DevPrediction(f"dev-{number}", example.labels, labels)
    for number, (example, labels) in enumerate(zip(dev_set, predicted), 1)
  ]
  is_correct = [np.equal(p.gold, p.predicted) for p in predictions]
  of_heads = np.mean(is_correct, axis=0).tolist()
  results = dict(zip(run.settings.label_columns, of_heads))
  return results | {"mean_accuracy": np.mean(of_heads)}, predictions


def label_texts(
  run: Run, texts: Sequence[Example], checkpoint: str | None
) -> None:
  """Writes the labels of --predict_file."""
  name = result_files.predictions_name(run.settings.predict_file)
  batch_size = run.flags.predict_batch_size
  rows = predict(run, "predict", texts, batch_size, checkpoint)
  with files.atomic_write(run.path(f"{name}.tsv")) as file:
    file.write(text_files.tsv_line([*run.settings.label_columns, "text"]))
    for labels, example in zip(rows, texts):
      file.write(text_files.tsv_line([*labels, example.text]))


def prepare(
  asked: TwoHeadSettings, step: Steps
) -> tuple[Run, list[Sequence[Example]]]:
  """Loads the model and reads the examples of each file; writes nothing."""
  settings = step("model", resolve.complete, asked)
  data = step("data", read_data, settings)
  label_sets = step("labels", find_labels, settings, data)
  task = step("task", make_task, settings, label_sets)
  run = step("run", runs.setup, settings, task, step)
  loop.check_start(run, step)
  return run, data


def main(_) -> None:
  """Trains, evaluates and predicts."""
  settings = option.from_flags(TwoHeadSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, (train_set, dev_set, texts) = prepare(settings, step)
  if step.is_dry_run:
    return
  named = (
    (settings.train_file, "training data"),
    (settings.dev_file, "dev data"),
    (settings.predict_file, None),
  )
  data_files = [(path, use) for path, use in named if path]
  with run_report.started(receipt, run, data_files) as outcome:
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      loop.train(
        run,
        make_input_fn(run, "train", train_set, run.flags.train_batch_size),
        step_plan.count_steps(settings.flags, len(train_set), "texts"),
        f"{len(train_set)} texts",
        lambda checkpoint: measure(run, dev_set, checkpoint)[0],
      )
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      results, predicted = measure(run, dev_set, outcome.checkpoint)
      outcome.found.results = results
      loop.write_metrics(
        run, results, outcome.checkpoint, predictions=predicted
      )
    if run.predicts:
      label_texts(run, texts, outcome.checkpoint)


if __name__ == "__main__":
  define_flags()
  app.run(main)
