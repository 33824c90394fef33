"""Benchmark of serving: throughput and latency of an exported model.

From the texts of MRPC's test set to probabilities, including tokenization: the
SavedModel of export_model.py from raw text, in batches of 32 in input order;
`run_classifier.Predictor` and `estimator.predict`, which sort by length; and
the int8 model of TensorFlow Lite, one text at a time. The probabilities are
compared.

    python -m benchmarks.serving --data_dir=glue/MRPC --model_dir=output/mrpc
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace

from absl import flags

from benchmarks import prediction, side_by_side
from benchmarks.side_by_side import Answer

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.DEFINE_string("data_dir", None, "Folder of MRPC.", required=True)
  flags.DEFINE_string(
    "model_dir", None, "Folder of a run of run_classifier.py.", required=True
  )
  flags.DEFINE_integer("batch_size", 32, "Texts per batch.")
  flags.DEFINE_integer(
    "most_texts", None, "Use only the first pairs, for a quick trial."
  )
  flags.DEFINE_integer(
    "latency_runs", 50, "Predictions of a single pair per pass."
  )


def main(_: list[str]) -> None:
  """Times predictions and prints ratios."""
  side_by_side.compare(
    [ours, predictor, estimator, tensorflow_lite],
    {
      "test set": lambda seconds: f"{1 / seconds:.1f} examples/s",
      "one pair": lambda seconds: f"{1000 * seconds:.2f} ms",
    },
  )


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """The exported SavedModel, from raw text."""
  import tensorflow as tf

  import export_model

  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "exported")
    export_model.export(source_of(settings), path)
    exported = tf.saved_model.load(path)

  def predict(pairs):
    predictions = []
    for first in range(0, len(pairs), settings.batch_size):
      texts = zip(*pairs[first : first + settings.batch_size])
      texts = dict(zip(("text_a", "text_b"), map(tf.constant, texts)))
      outputs = exported.signatures["pair"](**texts)
      predictions += outputs["probabilities"].numpy()[:, 1].tolist()
    return predictions

  yield from prediction.predictions(settings, "SavedModel, raw text", predict)


def predictor(settings: SimpleNamespace) -> Iterator[Answer]:
  """`run_classifier.Predictor`."""
  import run_classifier

  model = run_classifier.Predictor(
    settings.model_dir, batch_size=settings.batch_size
  )

  def predict(pairs):
    return [p.probabilities["1"] for p in model.predict(pairs)]

  yield from prediction.predictions(settings, "Predictor", predict)


def estimator(settings: SimpleNamespace) -> Iterator[Answer]:
  """`estimator.predict`, which builds a graph and reads weights per call."""
  import run_classifier
  from bertlib import estimator_api
  from bertlib.compute import FastCompute
  from bertlib.data import classification, classification_records, tf_records

  source = source_of(settings)
  problem = classification.problem_from_description(source.description)
  length = source.description["max_seq_length"]
  tokenizer = tokenizer_of(source)
  model = estimator_api.TPUEstimator(
    run_classifier.model_fn_builder(
      source.config,
      problem.num_labels,
      None,
      0.0,
      0,
      0,
      use_tpu=False,
      use_one_hot_embeddings=False,
      compute=FastCompute(unpad=True),
    ),
    use_tpu=False,
    model_dir=settings.model_dir,
    config=estimator_api.RunConfig(),
    predict_batch_size=settings.batch_size,
  )

  def predict(pairs):
    examples = [
      run_classifier.InputExample(str(n), *pair, problem.labels[0])
      for n, pair in enumerate(pairs)
    ]
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "records")
      classification_records.file_based_convert_examples_to_features(
        examples, problem.labels, length, tokenizer, path, problem
      )
      input_fn = classification_records.file_based_input_fn_builder(
        path, length, False, False, problem, trim=True, by_length=True
      )
      rows = model.predict(input_fn, checkpoint_path=source.checkpoint)
      return [
        row["probabilities"][1] for row in tf_records.restore_input_order(rows)
      ]

  few = SimpleNamespace(**{**vars(settings), "latency_runs": 2})
  yield from prediction.predictions(few, "estimator.predict", predict)


def tensorflow_lite(settings: SimpleNamespace) -> Iterator[Answer]:
  """The int8 model of TensorFlow Lite, one text at a time."""
  import numpy as np
  import tensorflow as tf

  import export_model
  from bertlib.data import model_inputs

  source = source_of(settings)
  tokenizer = tokenizer_of(source)
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "exported")
    export_model.export_quantized(source, path)
    model = tf.lite.Interpreter(
      os.path.join(path, export_model.TFLITE_FILE), num_threads=os.cpu_count()
    )
  run = model.get_signature_runner()

  def label(pair):
    encoded = model_inputs.encode_pair(
      tokenizer, *pair, source.description["max_seq_length"]
    )
    used = sum(encoded.input_mask)
    rows = {
      name: np.array([getattr(encoded, name)[:used]], np.int32)
      for name in model_inputs.TOKEN_FEATURES
    }
    return float(run(**rows)["probabilities"][0, 1])

  yield from prediction.predictions(
    settings, "TensorFlow Lite, int8", lambda pairs: list(map(label, pairs))
  )


# Helpers


def source_of(settings: SimpleNamespace):
  """The model as an `export_model.Source`."""
  import export_model

  return export_model.find_source(
    settings.model_dir, None, None, None, True, None
  )


def tokenizer_of(source):
  """The tokenizer of an `export_model.Source`."""
  import tokenization

  return tokenization.FullTokenizer(
    source.vocab_file, source.description["do_lower_case"]
  )


if __name__ == "__main__":
  from bertlib import app

  define_flags()
  app.run(main)
