"""How long does an epoch of fine-tuning on MRPC take, beside the peers'?

Texts at their real lengths, batches of 32, at most 128 tokens, dropout 0.1.
Ours is trimmed, packed and compiled as in run_classifier.py; transformers pads
each batch to its longest; both group examples by length, unless told not to.
The reference pads to 128. Reading of batches counts; imports, graphs and
checkpoints do not. The first epoch, told apart, has what is compiled for each
new shape as well.

    python -m benchmarks.mrpc_epoch --data_dir=glue/MRPC \
        --model_dir=output/minilm --hugging_face_dir=DIR_OF_THE_SAME_MODEL
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import Answer, timed

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the command line."""
  side_by_side.define_flags(passes=3)
  side_by_side.define_reference_flags()
  flags.adopt_module_key_flags(side_by_side)
  define_task_flags()
  flags.DEFINE_bool(
    "group_by_length", True, "Whether a batch has like lengths; not reference."
  )
  flags.DEFINE_enum("xla", "auto", ["auto", "on", "off"], "Ours.")
  flags.DEFINE_integer("max_steps", None, "Cuts an epoch short, for a try.")


def define_task_flags() -> None:
  """Defines where data and model are, and how large a batch is."""
  flags.DEFINE_string("data_dir", None, "Folder of MRPC.", required=True)
  define_encoder_flags()


def define_encoder_flags() -> None:
  """Defines where the model is, for both."""
  flags.DEFINE_string(
    "model_dir",
    None,
    "Folder with bert_config.json, vocab.txt and bert_model.ckpt, such as"
    " convert_checkpoint.py writes.",
    required=True,
  )
  flags.DEFINE_string(
    "hugging_face_dir", None, "The same model for transformers.", required=True
  )
  flags.DEFINE_integer("batch_size", 32, "Examples a batch.")
  flags.DEFINE_integer("max_seq_length", 128, "Tokens; what is longer is cut.")


def main(_: list[str]) -> None:
  """Times epochs and prints ratios."""
  side_by_side.compare(
    [ours, hugging_face, reference], {"an epoch": "{:.1f} s".format}
  )


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """Our epoch."""
  from bertlib.training import step_plan

  own = training_step.training_settings(
    train_batch_size=settings.batch_size,
    max_seq_length=settings.max_seq_length,
    precision=settings.precision,
    xla=settings.xla,
  )
  compute, options = step_plan.plan_training(
    own, step_plan.read_compute(own), read_config(settings)
  )
  how = {"compute": compute, "options": options, "seed": 1}
  yield from graph_side(
    settings,
    training_step.describe(how),
    {"trim": True, "by_length": settings.group_by_length},
    **how,
  )


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """The reference's epoch."""
  training_step.import_from(settings.reference)
  yield from graph_side(settings, "float32", {})


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """The epoch of transformers."""
  import torch
  import transformers
  from transformers.trainer_pt_utils import get_length_grouped_indices

  torch.manual_seed(1)
  tokenizer = transformers.AutoTokenizer.from_pretrained(
    settings.hugging_face_dir
  )
  rows = read_rows(settings.data_dir, "train")
  encoded = tokenizer(
    [row[3] for row in rows],
    [row[4] for row in rows],
    truncation=True,
    max_length=settings.max_seq_length,
  )
  labels = torch.tensor([int(row[0]) for row in rows])
  lengths = [len(ids) for ids in encoded["input_ids"]]

  def make_batch(indices):
    return padded(encoded, indices) | {"labels": labels[indices]}

  model = transformers.AutoModelForSequenceClassification.from_pretrained(
    settings.hugging_face_dir, num_labels=2, dtype=torch.float32
  )
  step = training_step.torch_step(model)
  longest = sorted(range(len(rows)), key=lengths.__getitem__)
  trial = make_batch(longest[-settings.batch_size :])
  precision, tells = side_by_side.best_precision(
    lambda precision: step(trial, precision), settings.peer_precision
  )

  def epoch():
    if settings.group_by_length:
      order = get_length_grouped_indices(lengths, settings.batch_size)
    else:
      order = torch.randperm(len(rows)).tolist()
    for number in range(steps_an_epoch(settings, len(rows))):
      first = number * settings.batch_size
      indices = order[first : first + settings.batch_size]
      step(make_batch(indices), precision)

  yield from epochs(tells, epoch)


# What they are made of


def in_model_dir(settings: SimpleNamespace, name: str) -> str:
  """Path of a file of our model."""
  return os.path.join(settings.model_dir, name)


def read_config(settings: SimpleNamespace) -> Any:
  """Our model's sizes, or the reference's of them."""
  import modeling

  path = in_model_dir(settings, "bert_config.json")
  return modeling.BertConfig.from_json_file(path)


def read_rows(data_dir: str, split: str) -> list[list[str]]:
  """The rows of a file of MRPC: label or number, two ids, two texts."""
  path = os.path.join(data_dir, split + ".tsv")
  with open(path, encoding="utf-8-sig") as file:
    return [line.rstrip("\n").split("\t") for line in file][1:]


def steps_an_epoch(settings: SimpleNamespace, num_examples: int) -> int:
  """Whole batches of an epoch, or fewer for a try."""
  return settings.max_steps or num_examples // settings.batch_size


def padded(
  encoded: Mapping[str, list[list[int]]], indices: list[int]
) -> dict[str, Any]:
  """A batch of what a tokenizer of transformers gave, for PyTorch.

  Args:
    encoded: lists by name.
    indices: of the batch's examples.

  Returns:
    By name, int64 [B, S], with zeros after the end of the shorter.
  """
  import torch

  return {
    name: torch.nn.utils.rnn.pad_sequence(
      [torch.tensor(lists[index]) for index in indices], batch_first=True
    )
    for name, lists in encoded.items()
  }


def epochs(tells: str, epoch: Callable[[], None]) -> Iterator[Answer]:
  """A side that runs an epoch once for its account, then a time a pass."""
  first = timed(epoch)
  yield {"tells": f"{tells}; first epoch {first:.1f} s"}
  while True:
    yield {"an epoch": timed(epoch)}


def graph_side(
  settings: SimpleNamespace,
  tells: str,
  input_options: dict[str, Any],
  **how: Any,
) -> Iterator[Answer]:
  """A side of ours or the reference's, whose functions are called alike.

  Args:
    settings: the flags.
    tells: what to tell.
    input_options: of `file_based_input_fn_builder`, what only ours takes.
    **how: of the model, what only ours takes.

  Yields:
    As every side.
  """
  import tensorflow.compat.v1 as tf

  import run_classifier
  import tokenization
  from bertlib.data import classification_records

  processor = run_classifier.MrpcProcessor()
  examples = processor.get_train_examples(settings.data_dir)
  tokenizer = tokenization.FullTokenizer(
    in_model_dir(settings, "vocab.txt"), do_lower_case=True
  )
  with tempfile.TemporaryDirectory() as folder:
    records = os.path.join(folder, "train.tf_record")
    classification_records.file_based_convert_examples_to_features(
      examples,
      processor.get_labels(),
      settings.max_seq_length,
      tokenizer,
      records,
    )
    input_fn = classification_records.file_based_input_fn_builder(
      records, settings.max_seq_length, True, True, **input_options
    )

    def next_batch():
      dataset = input_fn({"batch_size": settings.batch_size})
      return tf.data.make_one_shot_iterator(dataset).get_next()

    num_steps = steps_an_epoch(settings, len(examples))
    session, _, train_op = training_step.training_session(
      next_batch,
      read_config(settings),
      settings.batch_size,
      num_train_steps=num_steps * (settings.passes + 1),
      init_checkpoint=in_model_dir(settings, "bert_model.ckpt"),
      **how,
    )
    yield from epochs(
      tells,
      lambda: training_step.repeat(num_steps, session.run, train_op),
    )


if __name__ == "__main__":
  from bertlib import app

  define_flags()
  app.run(main)
