"""Benchmark of predict.py: sentence vectors of a file of texts, file to file.

Beside it the strongest other ways to do that with ONNX Runtime: `OnnxModel` fed
with lists, sentence-transformers' onnx backend, transformers' pipeline with
optimum, and fastembed with threads and with processes. Each reads the file,
computes and writes an .npy file, with its model loaded before. Others get texts
sorted by length, and the fastest of several batch sizes in a trial; fastembed
reads the export of this project.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install \
        'sentence-transformers[onnx]<6' fastembed absl-py
    python -m benchmarks.file_prediction --peer_python=/tmp/peers/bin/python \
        --onnx_dir=exported --hugging_face_dir=minilm --text_file=texts.txt

Files are equal to 1e-4 in the sum of each of the first vectors.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import side_by_side
from benchmarks.inference_works import in_order_of_length
from benchmarks.side_by_side import FLAGS, Answers, Settings, timed

_BATCH_SIZES = (8, 16, 32, 64, 128)
_TRIAL = 1024  # texts


def main(_: list[str]) -> None:
  """Compares the sides."""
  sides = side_by_side.chosen(
    [ours, *(PEERS[name] for name in FLAGS.peers)],
    ["sentence-transformers", "optimum", "fastembed"],
  )
  lists = side_by_side.Side("OnnxModel with lists", lists_in_memory)
  number = len(read(FLAGS.text_file))
  name = os.path.basename(FLAGS.text_file)
  work = f"vectors of {number:,} texts of {name}, file to file"
  pairs = [
    ("batches", own.name, other.name)
    for own in (sides[0], lists)
    for other in sides[1:]
  ]
  side_by_side.compare([sides[0], lists, *sides[1:]], work, pairs)


# Sides


def ours(settings: Settings) -> Answers:
  """predict.py, without its start."""
  import predict
  from bertlib.cli import option

  threads = settings.num_threads or 0

  def made(path):
    return option.make(
      predict.PredictSettings,
      model=settings.onnx_dir,
      engine="onnxruntime",
      num_threads=threads,
      input=settings.text_file,
      output=path,
    )

  def predict_to(path):
    predict.predict_file(model, made(path))

  model = predict.open_model(made("-"))
  yield from serve("predict.py", settings, predict_to)


def lists_in_memory(settings: Settings) -> Answers:
  """`OnnxModel` fed with a list of all texts."""
  from bertlib.export import OnnxModel

  threads = settings.num_threads
  model = OnnxModel(settings.onnx_dir, "onnxruntime", num_threads=threads)
  encode = with_file(settings, model.encode)
  yield from serve("OnnxModel.encode", settings, encode)


def sentence_transformers(settings: Settings) -> Answers:
  """The onnx backend, which sorts by length itself."""
  import onnxruntime
  import sentence_transformers as library

  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = settings.num_threads or os.cpu_count()
  given = {"provider": "CPUExecutionProvider", "session_options": options}
  model = library.SentenceTransformer(
    settings.hugging_face_dir, backend="onnx", device="cpu", model_kwargs=given
  )

  def encode(texts, size):
    return model.encode(texts, batch_size=size, normalize_embeddings=True)

  yield from serve_fastest("onnx backend", settings, encode)


def transformers_pipeline(settings: Settings) -> Answers:
  """`pipeline("feature-extraction")` with optimum; pools by NumPy."""
  import onnxruntime
  from optimum.onnxruntime import ORTModelForFeatureExtraction
  from transformers import AutoTokenizer, pipeline

  folder, options = settings.hugging_face_dir, onnxruntime.SessionOptions()
  options.intra_op_num_threads = settings.num_threads or os.cpu_count()
  model = ORTModelForFeatureExtraction.from_pretrained(
    folder, export=True, session_options=options
  )
  tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=256)
  pipe = pipeline("feature-extraction", model=model, tokenizer=tokenizer)

  def encode(texts, size):
    # With a batch size, a pipeline returns padding too.
    lengths = [len(ids) for ids in tokenizer(texts, truncation=True).input_ids]
    found = pipe(texts, batch_size=size, return_tensors=True, truncation=True)
    pooled = (
      states[0, :length].numpy().mean(0)
      for states, length in zip(found, lengths)
    )
    vectors = np.stack([*pooled])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

  yield from serve_fastest("pipeline", settings, in_order_of_length(encode))


def fastembed(settings: Settings) -> Answers:
  """Encodes by fastembed, with the export of this project."""
  encode = fastembed_encoder(settings, settings.num_threads or os.cpu_count())
  yield from serve_fastest("embed", settings, in_order_of_length(encode))


def fastembed_processes(settings: Settings) -> Answers:
  """The same by processes of fastembed, of one thread each."""
  number = settings.num_threads or os.cpu_count()
  encode = fastembed_encoder(settings, threads=1, parallel=number)
  name = f"embed, parallel={number}"
  yield from serve_fastest(name, settings, in_order_of_length(encode))


PEERS = {
  "sentence_transformers": sentence_transformers,
  "transformers_pipeline": transformers_pipeline,
  "fastembed": fastembed,
  "fastembed_processes": fastembed_processes,
}


# Their work


def read(path: str) -> list[str]:
  """Texts of a file."""
  with open(path, encoding="utf-8") as file:
    return [line.strip() for line in file]


def with_file(
  settings: Settings, encode: Callable[[list[str]], Any]
) -> Callable[[str], None]:
  """A function that writes the vectors of the file of texts to a path."""

  def to_file(path):
    np.save(path, np.asarray(encode(read(settings.text_file)), np.float32))

  return to_file


def fastembed_encoder(
  settings: Settings, threads: int, parallel: int | None = None
) -> Callable:
  """Vectors of texts in batches of a size; pooled by the exported graph."""
  from fastembed import TextEmbedding
  from fastembed.common.model_description import ModelSource, PoolingType

  TextEmbedding.add_custom_model(
    model="mine/exported",
    pooling=PoolingType.DISABLED,
    normalization=False,
    sources=ModelSource(url="https://example.com"),
    dim=384,
    model_file="onnx/model.onnx",
  )
  model = TextEmbedding(
    "mine/exported", specific_model_path=settings.onnx_dir, threads=threads
  )

  def encode(texts, size):
    return np.stack([*model.embed(texts, batch_size=size, parallel=parallel)])

  return encode


def serve_fastest(name: str, settings: Settings, encode: Callable) -> Answers:
  """Serves with the batch size that is the fastest for some of the texts."""
  texts = read(settings.text_file)
  trial = texts[:: max(len(texts) // _TRIAL, 1)]
  encode(trial[:64], 8)
  seconds = {size: timed(encode, trial, size) for size in _BATCH_SIZES}
  best = min(seconds, key=seconds.get)
  to_file = with_file(settings, lambda texts: encode(texts, best))
  yield from serve(f"{name}, batches of {best}", settings, to_file)


def serve(
  description: str, settings: Settings, write_to: Callable[[str], None]
) -> Answers:
  """Yields sums of vectors, then the time per text of each request."""
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "vectors.npy")
    first = timed(write_to, path)  # may take minutes: this one counts too
    sums = [float(row.sum()) for row in np.load(path)[:32]]
    yield {"description": description, "outputs": sums}
    number = len(read(settings.text_file))
    yield {"batches": first / number}
    while True:
      yield {"batches": timed(write_to, path) / number}


if __name__ == "__main__":
  side_by_side.run(
    main,
    onnx_dir="Sentence vectors, by export_model.py --format=onnx.",
    hugging_face_dir="The same model for sentence-transformers.",
    text_file="UTF-8 texts, one per line.",
    peers=(PEERS, "Those to compare with."),
  )
