"""Benchmark of an epoch of fine-tuning on MRPC.

Real sequence lengths up to 128 tokens, batches of 32, dropout 0.1. Ours trims,
unpads and compiles as run_classifier.py does; transformers pads each batch to
its longest example; both use length bucketing by default. The original pads to
128. The time includes reading of batches, but not imports, graphs and
checkpoints. The first epoch, which also compiles each new shape, is printed
separately.

    python -m benchmarks.mrpc_epoch --data_dir=glue/MRPC \
        --model_dir=output/minilm --hugging_face_dir=DIR_OF_THE_SAME_MODEL

With models of RoBERTa's kind, which have a tokenizer.json, there is no
original.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from typing import Any, Callable

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import FLAGS, Answers, Settings, repeat, timed


def main(_: list[str]) -> None:
  """Times epochs and reports ratios."""
  from bertlib.tasks.classification import classification

  examples = classification.MrpcProcessor().get_train_examples(FLAGS.data_dir)
  side_by_side.check_number(FLAGS.data_dir, len(examples), FLAGS.batch_size)
  folders = (FLAGS.data_dir, FLAGS.model_dir)
  work = ", ".join(os.path.basename(path.rstrip("/")) for path in folders)
  sides = side_by_side.chosen([ours, hugging_face, reference])
  side_by_side.compare(sides, work)


def ours(settings: Settings) -> Answers:
  """An epoch of ours."""
  keywords = training_step.training_plan(
    settings, read_config(settings), settings.max_seq_length
  )
  yield from graph_side(
    settings,
    training_step.describe(keywords),
    {"trim": True, "by_length": settings.group_by_length},
    seed=1,
    **keywords,
  )


def reference(settings: Settings) -> Answers:
  """An epoch of the original."""
  training_step.import_from(settings.reference)
  yield from graph_side(settings, "float32", {})


def hugging_face(settings: Settings) -> Answers:
  """An epoch of transformers."""
  import torch
  import transformers
  from transformers.trainer_pt_utils import get_length_grouped_indices

  from benchmarks.torch_training import load
  from bertlib.tasks.classification import classification

  torch.manual_seed(1)
  model_dir = settings.hugging_face_dir
  tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
  rows = classification.MrpcProcessor().get_train_examples(settings.data_dir)
  encoded = tokenizer(
    [row.text_a for row in rows],
    [row.text_b for row in rows],
    truncation=True,
    max_length=settings.max_seq_length,
  )
  labels = torch.tensor([int(row.label) for row in rows])
  lengths = [len(ids) for ids in encoded["input_ids"]]

  def make_batch(indices):
    return padded(encoded, indices) | {"labels": labels[indices]}

  model = load("AutoModelForSequenceClassification", model_dir, num_labels=2)
  step = training_step.torch_step(model, dynamic=True)
  longest = sorted(range(len(rows)), key=lengths.__getitem__)
  trial = make_batch(longest[-settings.batch_size :])
  variant, description = side_by_side.best_variant(
    functools.partial(step, trial), settings
  )

  def epoch():
    if settings.group_by_length:
      order = get_length_grouped_indices(lengths, settings.batch_size)
    else:
      order = torch.randperm(len(rows)).tolist()
    for number in range(len(rows) // settings.batch_size):
      first = number * settings.batch_size
      indices = order[first : first + settings.batch_size]
      step(make_batch(indices), *variant)

  yield from epochs(description, epoch)


def read_config(settings: Settings) -> Any:
  """Config of our model, as ours or the original's `BertConfig`."""
  import modeling

  path = os.path.join(settings.model_dir, "bert_config.json")
  return modeling.BertConfig.from_json_file(path)


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


def epochs(description: str, epoch: Callable[[], None]) -> Answers:
  """A side that runs one epoch to warm up, then times an epoch per pass."""
  description += f"; first epoch {timed(epoch):.1f} s"
  yield from side_by_side.passes(description, "an epoch", 1, epoch)


def graph_side(
  settings: Settings,
  description: str,
  input_options: dict[str, Any],
  **keywords: Any,
) -> Answers:
  """A side of ours or of the original, whose functions have the same names."""
  import run_classifier
  import tokenization

  processor = run_classifier.MrpcProcessor()
  examples = processor.get_train_examples(settings.data_dir)
  path = os.path.join(settings.model_dir, "tokenizer.json")  # of RoBERTa's kind
  if os.path.exists(path):
    from bertlib.data import subword_tokenizer

    tokenizer = subword_tokenizer.load(path)
  else:
    path = os.path.join(settings.model_dir, "vocab.txt")
    tokenizer = tokenization.FullTokenizer(path, do_lower_case=True)
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

    num_steps = len(examples) // settings.batch_size
    model_fn = training_step.make_model_fn(
      run_classifier,
      read_config(settings),
      num_labels=2,
      num_train_steps=num_steps * (settings.passes + 1),
      init_checkpoint=os.path.join(settings.model_dir, "bert_model.ckpt"),
      **keywords,
    )
    yield from graph_epochs(
      settings, description, input_fn, model_fn, num_steps
    )


def graph_epochs(
  settings: Settings,
  description: str,
  input_fn: Callable,
  model_fn: Callable,
  num_steps: int,
) -> Answers:
  """A side of a graph that trains on the batches of an input."""
  import tensorflow.compat.v1 as tf

  def next_batch():
    dataset = input_fn({"batch_size": settings.batch_size})
    return tf.data.make_one_shot_iterator(dataset).get_next()

  session, _, spec = training_step.start_session(
    model_fn, next_batch, settings.batch_size
  )
  # Closed at the end: a process whose input still runs does not exit.
  with session:
    yield from epochs(
      description, lambda: repeat(num_steps, session.run, spec.train_op)
    )


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=3,
    **side_by_side.ENCODER,
    data_dir="Folder of MRPC.",
    group_by_length=(True, "Length bucketing; not in the original."),
  )
