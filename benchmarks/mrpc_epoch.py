"""Benchmark of an epoch of fine-tuning on MRPC.

Real sequence lengths up to 128 tokens, batches of 32, dropout 0.1. Ours trims,
unpads and compiles as run_classifier.py does; transformers pads each batch to
its longest example; both use length bucketing by default. The original pads to
128. The time includes reading of batches, but not imports, graphs and
checkpoints. The first epoch, which also compiles each new shape, is printed
separately.

    python -m benchmarks.mrpc_epoch --data_dir=glue/MRPC \
        --model_dir=output/minilm --hugging_face_dir=DIR_OF_THE_SAME_MODEL
"""

from __future__ import annotations

import functools
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
  """Defines the flags."""
  side_by_side.define_flags(passes=3)
  flags.adopt_module_key_flags(side_by_side)
  define_task_flags()
  flags.DEFINE_bool(
    "group_by_length", True, "Length bucketing; not in the original."
  )
  flags.DEFINE_enum("xla", "auto", ["auto", "on", "off"], "Ours.")
  flags.DEFINE_integer(
    "max_steps", None, "Shortens the epoch, for a quick trial."
  )


def define_task_flags() -> None:
  """Defines the flags of data, model and batch size."""
  flags.DEFINE_string("data_dir", None, "Folder of MRPC.", required=True)
  define_encoder_flags()


def define_encoder_flags() -> None:
  """Defines the flags of the model, for both sides."""
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
  flags.DEFINE_integer("batch_size", 32, "Examples per batch.")
  flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens; longer pairs are truncated."
  )


def main(_: list[str]) -> None:
  """Times epochs and reports ratios."""
  work = f"MRPC, {os.path.basename(FLAGS.model_dir.rstrip('/'))}"
  if FLAGS.max_steps:
    work += f", {FLAGS.max_steps} steps"
  side_by_side.compare([ours, hugging_face, reference], work)


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """An epoch of ours."""
  from bertlib.training.memory_plan import StepShape

  compute, options = training_step.training_plan(
    read_config(settings),
    StepShape(settings.max_seq_length),
    train_batch_size=settings.batch_size,
    max_seq_length=settings.max_seq_length,
    precision=settings.precision,
    xla=settings.xla,
  )
  keywords = {"compute": compute, "options": options, "seed": 1}
  yield from graph_side(
    settings,
    training_step.describe(keywords),
    {"trim": True, "by_length": settings.group_by_length},
    **keywords,
  )


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """An epoch of the original."""
  training_step.import_from(settings.reference)
  yield from graph_side(settings, "float32", {})


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """An epoch of transformers."""
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
  step = training_step.torch_step(model, dynamic=True)
  longest = sorted(range(len(rows)), key=lengths.__getitem__)
  trial = make_batch(longest[-settings.batch_size :])
  variant, description = side_by_side.best_variant(
    functools.partial(step, trial),
    settings.peer_precision,
    settings.torch_compile,
  )

  def epoch():
    if settings.group_by_length:
      order = get_length_grouped_indices(lengths, settings.batch_size)
    else:
      order = torch.randperm(len(rows)).tolist()
    for number in range(steps_per_epoch(settings, len(rows))):
      first = number * settings.batch_size
      indices = order[first : first + settings.batch_size]
      step(make_batch(indices), *variant)

  yield from epochs(description, epoch)


# Helpers


def in_model_dir(settings: SimpleNamespace, name: str) -> str:
  """Path of a file in --model_dir."""
  return os.path.join(settings.model_dir, name)


def read_config(settings: SimpleNamespace) -> Any:
  """Config of our model, as ours or the original's `BertConfig`."""
  import modeling

  path = in_model_dir(settings, "bert_config.json")
  return modeling.BertConfig.from_json_file(path)


def read_rows(data_dir: str, split: str) -> list[list[str]]:
  """Rows of a file of MRPC: label or number, two ids, two texts."""
  path = os.path.join(data_dir, split + ".tsv")
  with open(path, encoding="utf-8-sig") as file:
    return [line.rstrip("\n").split("\t") for line in file][1:]


def steps_per_epoch(settings: SimpleNamespace, num_examples: int) -> int:
  """Number of full batches per epoch, or of --max_steps if given."""
  return settings.max_steps or num_examples // settings.batch_size


def padded(
  encoded: Mapping[str, list[list[int]]], indices: list[int]
) -> dict[str, Any]:
  """A PyTorch batch of the output of a transformers tokenizer."""
  import torch

  return {
    name: torch.nn.utils.rnn.pad_sequence(
      [torch.tensor(lists[index]) for index in indices], batch_first=True
    )
    for name, lists in encoded.items()
  }


def epochs(description: str, epoch: Callable[[], None]) -> Iterator[Answer]:
  """A side that runs one epoch to warm up, then times an epoch per pass."""
  first = timed(epoch)
  yield {"description": f"{description}; first epoch {first:.1f} s"}
  while True:
    yield {"an epoch": timed(epoch)}


def graph_side(
  settings: SimpleNamespace,
  description: str,
  input_options: dict[str, Any],
  **keywords: Any,
) -> Iterator[Answer]:
  """A side of ours or of the original, whose functions have the same names."""
  import tensorflow.compat.v1 as tf

  import run_classifier
  import tokenization

  processor = run_classifier.MrpcProcessor()
  examples = processor.get_train_examples(settings.data_dir)
  tokenizer = tokenization.FullTokenizer(
    in_model_dir(settings, "vocab.txt"), do_lower_case=True
  )
  with tempfile.TemporaryDirectory() as folder:
    records = os.path.join(folder, "train.tf_record")
    run_classifier.file_based_convert_examples_to_features(
      examples,
      processor.get_labels(),
      settings.max_seq_length,
      tokenizer,
      records,
    )
    input_fn = run_classifier.file_based_input_fn_builder(
      records, settings.max_seq_length, True, True, **input_options
    )

    def next_batch():
      dataset = input_fn({"batch_size": settings.batch_size})
      return tf.data.make_one_shot_iterator(dataset).get_next()

    num_steps = steps_per_epoch(settings, len(examples))
    session, _, train_op = training_step.training_session(
      next_batch,
      read_config(settings),
      settings.batch_size,
      num_train_steps=num_steps * (settings.passes + 1),
      init_checkpoint=in_model_dir(settings, "bert_model.ckpt"),
      **keywords,
    )
    yield from epochs(
      description,
      lambda: training_step.repeat(num_steps, session.run, train_op),
    )


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
