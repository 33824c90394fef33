"""Models of `inference`, the same for all sides; and this project as a side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from benchmarks.inference_works import (
  TASKS,
  checksums,
  in_folder,
  read_texts,
  serve,
)
from benchmarks.side_by_side import Answer
from bertlib.checkpoints import records

# Layers, hidden size and heads.
SIZES = {
  "bert-base": (12, 768, 12),
  "minilm": (6, 384, 12),
  "tiny": (2, 128, 2),
}


def make_model(settings: SimpleNamespace) -> Iterator[Answer]:
  """Writes a model, its head random, for ours and for transformers."""
  import tensorflow.compat.v1 as tf

  from bertlib.checkpoints import loading, model_json
  from bertlib.exchange import to_huggingface
  from bertlib.io import model_files

  task = TASKS[settings.task]
  config, vocab_file, encoder = read_encoder(settings)
  description = {**task.description, "do_lower_case": True}
  folder = in_folder(settings, "ours")
  tf.gfile.MakeDirs(folder)
  model_json.write_model_files(folder, description, config, vocab_file)
  checkpoint = in_folder(settings, "ours", "model.ckpt")
  write_checkpoint(settings, description, config, encoder, checkpoint)
  calibrate(settings, description, config, checkpoint)
  to_huggingface.convert(
    checkpoint,
    in_folder(settings, "ours", model_files.CONFIG),
    in_folder(settings, "ours", model_files.VOCAB),
    in_folder(settings, "hugging_face"),
    task.architecture,
    do_lower_case=True,
    find_task=records.find,
  )
  yield {"description": f"{loading.num_weights(config):,} weights"}


def read_encoder(settings: SimpleNamespace) -> tuple[Any, str, str | None]:
  """Config, vocabulary and checkpoint of the encoder; None: random weights."""
  import modeling
  from bertlib.checkpoints import loading
  from bertlib.exchange import from_huggingface
  from bertlib.io import model_files

  if settings.model == "minilm" and settings.minilm:
    folder = in_folder(settings, "encoder")
    from_huggingface.convert(settings.minilm, folder)
    config, vocab_file, checkpoint = (
      os.path.join(folder, name)
      for name in (
        model_files.CONFIG,
        model_files.VOCAB,
        model_files.CHECKPOINT,
      )
    )
    return loading.load_config(config), vocab_file, checkpoint
  layers, hidden, heads = SIZES[settings.model]
  vocab_file = settings.vocab_file or os.path.join(
    settings.minilm, model_files.VOCAB
  )
  with open(vocab_file, encoding="utf-8") as file:
    vocab_size = file.read().rstrip("\n").count("\n") + 1
  config = modeling.BertConfig(
    vocab_size, hidden, layers, heads, 4 * hidden, type_vocab_size=2
  )
  return config, vocab_file, None


def write_checkpoint(
  settings: SimpleNamespace,
  description: dict[str, Any],
  config: Any,
  encoder: str | None,
  checkpoint: str,
) -> None:
  """Writes a checkpoint of an encoder and, if it has one, a random head."""
  import numpy as np
  import tensorflow.compat.v1 as tf

  from bertlib.checkpoints import initialize
  from bertlib.compute.fast_compute import FastCompute
  from bertlib.data import model_inputs

  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    ids = tf.ones([1, 8], tf.int32)
    inputs = dict.fromkeys(model_inputs.TOKEN_FEATURES, ids)
    build = predictor_class(settings.task).build
    build(description, config, inputs, FastCompute())
    tf.train.create_global_step()  # Estimator wants one
    if encoder:
      initialize.initialize_from_checkpoint(encoder)
    session.run(tf.global_variables_initializer())
    variables = {v.op.name: v for v in tf.trainable_variables()}
    scope = TASKS[settings.task].head
    if scope:
      head = variables[scope + "weights"]
      random = np.random.RandomState(1)
      session.run(head.assign(random.normal(scale=0.2, size=head.shape)))
    tf.train.Saver().save(session, checkpoint)


def calibrate(
  settings: SimpleNamespace,
  description: dict[str, Any],
  config: Any,
  checkpoint: str,
) -> None:
  """Writes `quantization.json`, for int8."""
  from bertlib.checkpoints import quantization
  from bertlib.data import vocabulary
  from bertlib.io import model_files, text_files

  path = in_folder(settings, "calibration.txt")
  with open(path, "w", encoding="utf-8") as file:
    for text in read_texts(settings, "calibration"):
      print(*text, sep=text_files.SEPARATOR, file=file)
  folder = in_folder(settings, "ours")
  tokenizer = vocabulary.load_tokenizer(
    os.path.join(folder, model_files.VOCAB), True, config.vocab_size
  )
  length = description["max_seq_length"]
  quantization.find(
    quantization.TrainedEncoder(config, checkpoint, folder, tokenizer, length),
    path,
    list,
  )


def predictor_class(task: str):
  """The `Predictor` of a task."""
  import run_classifier
  import run_embeddings
  import run_squad

  return {
    "labels": run_classifier,
    "answers": run_squad,
    "vectors": run_embeddings,
  }[task].Predictor


def predictor(settings: SimpleNamespace) -> Iterator[Answer]:
  """The `Predictor` of run_classifier, run_squad or run_embeddings."""
  model = predictor_class(settings.task)(
    in_folder(settings, "ours"),
    batch_size=settings.batch_size,
    precision=settings.precision,
    num_threads=settings.num_threads,
  )

  def labels(texts):
    # A text without a second one is a string.
    texts = [text if len(text) > 1 else text[0] for text in texts]
    return [p.probabilities["1"] for p in model.predict(texts)]

  def answers(texts):
    return [found[0].text if found else "" for found in model.predict(texts)]

  def vectors(texts):
    return checksums(model.encode(text for (text,) in texts))

  return serve(
    settings,
    "in a session",
    {"labels": labels, "answers": answers, "vectors": vectors}[settings.task],
  )
