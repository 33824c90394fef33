"""Benchmark of feature extraction against transformers.

Time from lines of text to mean vectors of the last layer, in input order,
including tokenization: extract_features.py against transformers in inference
mode. Both sort by length. The vectors are compared.

    python -m benchmarks.feature_extraction --text_file=sentences.txt \
        --model_dir=output/minilm --hugging_face_dir=DIR_OF_THE_SAME_MODEL
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Callable

from absl import flags

from benchmarks import mrpc_epoch, prediction, side_by_side
from benchmarks.side_by_side import Answer, timed

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  mrpc_epoch.define_encoder_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.adopt_module_key_flags(mrpc_epoch)
  flags.DEFINE_string(
    "text_file", None, "Text file, one text per line.", required=True
  )
  flags.DEFINE_integer("most_texts", 2000, "Use only the first texts.")


def main(_: list[str]) -> None:
  """Times extraction and prints ratios."""
  side_by_side.compare(
    [ours, hugging_face],
    {"a line": lambda seconds: f"{1 / seconds:.1f} lines/s"},
  )


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """Ours: text to records, records to vectors."""
  import numpy as np
  import tensorflow.compat.v1 as tf

  import extract_features
  import tokenization
  from bertlib import precision as precision_lib
  from bertlib.checkpoints import loading
  from bertlib.compute import FastCompute
  from bertlib.data import input_pipeline, tf_records

  def in_model_dir(name):
    return mrpc_epoch.in_model_dir(settings, name)

  precision = settings.precision
  if precision == "auto":
    precision = precision_lib.fastest_dtype()
  tokenizer = tokenization.FullTokenizer(in_model_dir("vocab.txt"))
  layout = extract_features.record_layout(settings.max_seq_length)
  folder = tempfile.TemporaryDirectory()
  records = os.path.join(folder.name, "texts.tf_record")
  model_fn = extract_features.model_fn_builder(
    loading.load_config(in_model_dir("bert_config.json")),
    in_model_dir("bert_model.ckpt"),
    layer_indexes=[-1],
    use_tpu=False,
    use_one_hot_embeddings=False,
    pooling="mean",
    compute=FastCompute(tf.as_dtype(precision), unpad=True),
  )
  with tf.Graph().as_default():
    dataset = input_pipeline.record_batches(
      records, layout, settings.batch_size, False, trim=True, by_length=True
    )
    iterator = tf.data.make_initializable_iterator(dataset)
    spec = model_fn(iterator.get_next(), None, "infer", {})
    session = tf.Session()
    session.run(tf.global_variables_initializer())

  def rows():
    with contextlib.suppress(tf.errors.OutOfRangeError):
      while True:
        batch = session.run(spec.predictions)
        for values in zip(*batch.values()):
          yield dict(zip(batch, values))

  def extract(texts):
    examples = itertools.starmap(
      extract_features.InputExample, enumerate(texts)
    )
    tf_records.write_records(
      records,
      extract_features.encode_examples(
        examples, tokenizer, settings.max_seq_length
      ),
      layout,
    )
    session.run(iterator.initializer)
    return np.stack(
      [row["vectors"] for row in tf_records.restore_input_order(rows())]
    )

  yield from vectors(settings, precision, extract)


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """The same with transformers."""
  import torch
  import transformers

  model = transformers.AutoModel.from_pretrained(
    settings.hugging_face_dir, dtype=torch.float32
  ).eval()

  def extract_in(precision, texts):
    @torch.inference_mode()
    def run(batch):
      with torch.autocast(
        "cpu", torch.bfloat16, enabled=precision == "bfloat16"
      ):
        states = model(**batch).last_hidden_state.float()
      weights = batch["attention_mask"][:, :, None]
      return (states * weights).sum(1) / weights.sum(1)

    return prediction.sorted_batches(settings, run)(texts).numpy()

  texts = read_texts(settings)
  precision, description = side_by_side.best_precision(
    lambda precision: extract_in(precision, texts[:100]),
    settings.peer_precision,
  )
  extract = functools.partial(extract_in, precision)
  yield from vectors(settings, description, extract)


# Helpers


def read_texts(settings: SimpleNamespace) -> list[str]:
  """The first lines of the text, without line ends."""
  with open(settings.text_file, encoding="utf-8") as file:
    return [
      line.strip() for line in itertools.islice(file, settings.most_texts)
    ]


def vectors(
  settings: SimpleNamespace, description: str, extract: Callable
) -> Iterator[Answer]:
  """A side that times a function from texts to vectors, float32 [A, H]."""
  texts = read_texts(settings)
  outputs = extract(texts)[:20].ravel().tolist()
  yield {"description": description, "outputs": outputs}
  while True:
    yield {"a line": timed(extract, texts) / len(texts)}


if __name__ == "__main__":
  from bertlib import app

  define_flags()
  app.run(main)
