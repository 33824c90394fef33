"""Benchmark of prediction: throughput of many texts, latency of one.

From the texts of MRPC's test set to probabilities in input order, including
tokenization: `run_classifier.Predictor`, transformers (inference mode) and ONNX
Runtime (exported by torch.onnx, graph optimizations on, float32). All sort
texts by length and pad batches to their longest. Encoder and output layer are
the same, and the probabilities are compared.

    python -m benchmarks.prediction --data_dir=glue/MRPC \
        --model_dir=output/minilm --hugging_face_dir=DIR_OF_THE_SAME_MODEL
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

from benchmarks import mrpc_epoch, side_by_side
from benchmarks.side_by_side import Answer, timed

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  mrpc_epoch.define_task_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.adopt_module_key_flags(mrpc_epoch)
  flags.DEFINE_integer(
    "most_texts", None, "Use only the first pairs, for a quick trial."
  )
  flags.DEFINE_integer(
    "latency_runs", 50, "Predictions of a single pair per pass."
  )
  flags.DEFINE_bool(
    "torch_compile", False, "Compile the model of transformers."
  )


def main(_: list[str]) -> None:
  """Times predictions and prints ratios."""
  side_by_side.compare(
    [ours, hugging_face, onnx_runtime],
    {
      "test set": lambda seconds: f"{1 / seconds:.1f} examples/s",
      "one pair": lambda seconds: f"{1000 * seconds:.2f} ms",
    },
  )


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """`run_classifier.Predictor`."""
  import run_classifier
  from bertlib import precision as precision_lib

  precision = settings.precision
  if precision == "auto":
    precision = precision_lib.fastest_dtype()
  with tempfile.TemporaryDirectory() as folder:
    save_classifier(settings, folder)
    predictor = run_classifier.Predictor(
      folder, batch_size=settings.batch_size, precision=precision
    )

  def predict(pairs):
    return [p.probabilities["1"] for p in predictor.predict(pairs)]

  yield from predictions(settings, precision, predict)


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """The model in transformers."""
  import torch

  model = load_classifier(settings)
  if settings.torch_compile:
    model = torch.compile(model, dynamic=True)
  format_of = {}

  @torch.inference_mode()
  def run(batch):
    is_bfloat16 = format_of["activations"] == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
      return model(**batch).logits.float()

  predict = sorted_predictor(settings, run)

  def try_out(precision):
    format_of["activations"] = precision
    predict(read_pairs(settings)[:100])

  format_of["activations"], description = side_by_side.best_precision(
    try_out, settings.peer_precision
  )
  yield from predictions(settings, description, predict)


def onnx_runtime(settings: SimpleNamespace) -> Iterator[Answer]:
  """The model in ONNX Runtime."""
  import onnxruntime
  import torch

  model = load_classifier(settings, attn_implementation="eager")
  names = ["input_ids", "attention_mask", "token_type_ids"]
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.onnx")
    torch.onnx.export(
      model,
      kwargs={name: torch.ones(2, 8, dtype=torch.int64) for name in names},
      f=path,
      input_names=names,
      output_names=["logits"],
      dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
      dynamo=True,
      external_data=False,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
      onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    session = onnxruntime.InferenceSession(
      path, options, providers=["CPUExecutionProvider"]
    )

  def run(batch):
    feed = {name: tensor.numpy() for name, tensor in batch.items()}
    return torch.from_numpy(session.run(["logits"], feed)[0])

  yield from predictions(settings, "float32", sorted_predictor(settings, run))


# Helpers


def read_pairs(settings: SimpleNamespace) -> list[tuple[str, str]]:
  """Pairs of texts of the test set."""
  rows = mrpc_epoch.read_rows(settings.data_dir, "test")
  return [(row[3], row[4]) for row in rows[: settings.most_texts]]


def predictions(
  settings: SimpleNamespace, description: str, predict: Callable
) -> Iterator[Answer]:
  """A side that times a function which classifies pairs of texts.

  Args:
    settings: the flags.
    description: how this side computes, to print.
    predict: gives the probability of the second label for each pair.

  Yields:
    See `side_by_side`: seconds per pair, for all pairs and for a single one.
  """
  pairs = read_pairs(settings)
  one = pairs[:1]
  predict(one)
  yield {
    "description": description,
    "outputs": list(map(float, predict(pairs))),
  }
  while True:
    alone = [timed(predict, one) for _ in range(settings.latency_runs)]
    yield {
      "test set": timed(predict, pairs) / len(pairs),
      "one pair": statistics.median(alone),
    }


def head(width: int) -> Any:
  """Weights of the output layer, float32 [2, H]."""
  import numpy as np

  weights = np.random.RandomState(1).normal(scale=0.2, size=(2, width))
  return weights.astype(np.float32)


def save_classifier(settings: SimpleNamespace, folder: str) -> None:
  """Writes the files of a training run: the encoder and `head`."""
  import tensorflow.compat.v1 as tf

  import run_classifier
  from bertlib.checkpoints import initialize, loading, model_json

  def in_model_dir(name):
    return mrpc_epoch.in_model_dir(settings, name)

  config = loading.load_config(in_model_dir("bert_config.json"))
  description = {
    "script": "run_classifier",
    "labels": ["0", "1"],
    "max_seq_length": settings.max_seq_length,
    "do_lower_case": True,
  }
  model_json.write_model_files(
    folder, description, config, in_model_dir("vocab.txt")
  )
  with tf.Graph().as_default(), tf.Session() as session:
    ids = tf.ones([1, 8], tf.int32)
    run_classifier.create_model(
      config, False, ids, ids, ids, ids[:, 0], 2, use_one_hot_embeddings=False
    )
    initialize.initialize_from_checkpoint(in_model_dir("bert_model.ckpt"))
    session.run(tf.global_variables_initializer())
    weights = {v.op.name: v for v in tf.trainable_variables()}
    weights["output_weights"].load(head(config.hidden_size), session)
    tf.train.Saver().save(session, os.path.join(folder, "model.ckpt"))


def load_classifier(settings: SimpleNamespace, **options: Any) -> Any:
  """The encoder and `head` in transformers."""
  import torch
  import transformers

  model = transformers.AutoModelForSequenceClassification.from_pretrained(
    settings.hugging_face_dir, num_labels=2, dtype=torch.float32, **options
  )
  with torch.no_grad():
    model.classifier.weight.copy_(torch.tensor(head(model.config.hidden_size)))
    model.classifier.bias.zero_()
  return model.eval()


def sorted_predictor(settings: SimpleNamespace, run: Callable) -> Callable:
  """Makes a classifier of pairs of texts from one of padded batches."""
  import torch

  apply = sorted_batches(settings, lambda batch: torch.softmax(run(batch), -1))
  return lambda pairs: apply(*zip(*pairs))[:, 1]


def sorted_batches(settings: SimpleNamespace, run: Callable) -> Callable:
  """Makes a function of texts from a model of padded batches.

  It sorts texts by length and restores their order.

  Args:
    settings: the flags.
    run: function of a batch, tensors by name, to float [B, ...].

  Returns:
    A function of a sequence of texts, or of two sequences for pairs, to the
    outputs of `run`, in the order of the texts.
  """
  import torch
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(
    settings.hugging_face_dir
  )

  def apply(*texts):
    encoded = tokenizer(
      *map(list, texts), truncation=True, max_length=settings.max_seq_length
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    batches = [
      order[first : first + settings.batch_size]
      for first in range(0, len(order), settings.batch_size)
    ]
    results = torch.cat(
      [run(mrpc_epoch.padded(encoded, batch)) for batch in batches]
    )
    return results[torch.argsort(torch.tensor(order))]

  return apply


if __name__ == "__main__":
  from bertlib import app

  define_flags()
  app.run(main)
