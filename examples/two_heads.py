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
from collections.abc import Mapping, Sequence

from bertlib.cli import app, option
from bertlib.settings.training import TrainingSettings


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

  def check(self) -> None:
    """Refuses an action without its file."""
    super().check()
    self.need("train_file", "do_train", self.flags.do_train)
    self.need("dev_file", "do_eval", self.flags.evaluates)
    self.need("predict_file", "do_predict", self.flags.do_predict)


if __name__ == "__main__":  # Check flags before slow imports.
  app.parse_flags(TwoHeadSettings, imports_tensorflow=True)

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import model_inputs, tables, tf_records
from bertlib.exchange import resolve
from bertlib.export import signatures
from bertlib.io import text_files
from bertlib.reporting import own_task
from bertlib.reporting.own_task import Data, Rows
from bertlib.settings import model_description
from bertlib.task.task_record import PredictExample, Task, TaskRecord
from bertlib.training import loop, runs, train_step
from bertlib.training.runs import Run


def define_flags() -> None:
  """Defines the flags."""
  option.define(TwoHeadSettings)


# The data


class Example(NamedTuple):
  """A text and its two labels."""

  text: str
  labels: Sequence[str] = ()


def read_data(settings: TwoHeadSettings) -> Data:
  """Reads the files that the run needs."""
  flags, texts = settings.flags, []
  if flags.do_predict:
    lines = text_files.read_lines(settings.predict_file)
    texts = [Example(line.strip()) for line in lines]
  return Data(
    read_table(settings, settings.train_file) if flags.do_train else [],
    read_table(settings, settings.dev_file) if flags.evaluates else [],
    texts,
  )


def read_table(settings: TwoHeadSettings, path: str) -> list[Example]:
  """Reads the examples of a table."""
  columns = [("--label_columns", name) for name in settings.label_columns]
  table = tables.read_table(
    path, [("--text_column", settings.text_column), *columns]
  )
  text, *labels = table.columns
  return [
    Example(row.text(text), [row.label(column) for column in labels])
    for row in table.rows
  ]


def find_labels(settings: TwoHeadSettings, data: Data) -> list[list[str]]:
  """Labels of each head, from the training data or the trained model."""
  if data.train:
    labels = zip(*(example.labels for example in data.train))
    label_sets = [sorted(set(head)) for head in labels]
  else:
    trained = model_description.load(settings.flags.output_dir, RECORD)
    if "label_sets" not in trained:
      raise InputError("there is no trained model; give --do_train")
    label_sets = trained["label_sets"]
  for example in data.dev:
    for label, known in zip(example.labels, label_sets):
      if label not in known:
        raise InputError(
          f"{settings.dev_file}: label {label!r} is not in the training data"
        )
  return label_sets


def encode(run: Run, example: Example) -> dict[str, Any]:
  """Features of an example."""
  length = run.settings.model.max_seq_length
  row = model_inputs.encode_pair(run.tokenizer, example.text, None, length)
  label_sets = run.task.description["label_sets"]
  ids = [*map(list.index, label_sets, example.labels)] or [0, 0]
  return row._asdict() | {"label_ids": ids}


def decode(run: Run, row: Mapping[str, Any]) -> list[str]:
  """The predicted label of each head."""
  label_sets = run.task.description["label_sets"]
  return [known[i] for known, i in zip(label_sets, row["label_ids"])]


def measure(run: Run, gold: Sequence, predicted: Sequence) -> dict[str, float]:
  """Accuracy of each head, and their mean."""
  of_heads = np.mean(np.equal(gold, predicted), axis=0).tolist()
  results = dict(zip(run.settings.label_columns, of_heads))
  return results | {"mean_accuracy": np.mean(of_heads)}


ROWS = Rows(
  encode,
  decode,
  gold=lambda example: example.labels,
  columns=lambda run: run.settings.label_columns,
  measure=measure,
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


def prepare(asked: TwoHeadSettings, step: Steps) -> tuple[Run, Data]:
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
  own_task.run(__file__, option.from_flags(TwoHeadSettings), prepare, ROWS)


if __name__ == "__main__":
  app.run(main)
