"""Works of `inference`: tasks, texts, models; and this project as a side."""

from __future__ import annotations

import itertools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import numpy as np

from benchmarks.side_by_side import Answer, Answers, Settings, timed

# As in `bertlib.export.predictor`: the hidden states fit in the caches.
_TOKENS_PER_BATCH = 2048


class Task(NamedTuple):
  """What a model is asked."""

  architecture: str  # class of transformers
  description: dict[str, Any]  # contents of `model.json`


_EMBEDDINGS = {
  "script": "run_embeddings",
  "embedding": {"pooling": "mean", "normalize": True},
}
TASKS = {
  "labels": Task(
    "BertForSequenceClassification",
    {"script": "run_classifier", "labels": ["0", "1"], "max_seq_length": 128},
  ),
  "scores": Task(
    "BertForSequenceClassification",
    {"script": "run_reranker", "activation": "identity", "max_seq_length": 512},
  ),
  "answers": Task(
    "BertForQuestionAnswering",
    {
      "script": "run_squad",
      "max_seq_length": 384,
      "doc_stride": 128,
      "max_query_length": 64,
      "version_2_with_negative": False,
    },
  ),
  "vectors": Task("BertModel", {**_EMBEDDINGS, "max_seq_length": 256}),
  "states": Task("BertModel", {**_EMBEDDINGS, "max_seq_length": 128}),
}


class Work(NamedTuple):
  """Texts to predict, and how."""

  description: str  # in words
  task: str  # one of `TASKS`
  texts: str  # name of the texts, see `read_texts`
  alone: bool  # one text per call, else all in batches


WORKS = {
  "mrpc": Work("MRPC pairs", "labels", "mrpc", False),
  "mrpc-one": Work("one MRPC pair", "labels", "mrpc", True),
  "tokens": Work("texts of 128 tokens", "labels", "tokens", False),
  "tokens-one": Work("one text of 128 tokens", "labels", "tokens", True),
  "squad": Work("SQuAD questions", "answers", "squad", False),
  "rerank": Work("100 passages for a query", "scores", "passages", False),
  "lines": Work("vectors of lines", "vectors", "lines", False),
  "lines-one": Work("the vector of one line", "vectors", "lines", True),
  "states": Work("hidden states of MRPC pairs", "states", "mrpc", False),
}


# Texts


def read_texts(settings: Settings, name: str) -> list[tuple[str, ...]]:
  """Texts of one set: an evenly spaced sample."""
  from bertlib.tasks.classification import classification

  count = settings.max_texts
  if name == "calibration":
    count = 256
    labels = "mrpc-train" if settings.glue_dir else "tokens"
    names = {"answers": "squad", "scores": "squad", "vectors": "lines"}
    name = names.get(settings.task, labels)
  if name == "squad":
    texts = list(squad_questions(settings.squad_file))
  elif name == "passages":
    (query, _), *_ = questions = list(squad_questions(settings.squad_file))
    texts = [(query, text) for text in dict.fromkeys(p for _, p in questions)]
    count = 100
  elif name == "tokens":  # whole words: 128 tokens with [CLS] and [SEP]
    path = in_folder(settings, "ours", "vocab.txt")
    with open(path, encoding="utf-8") as file:
      words = itertools.cycle(re.findall(r"(?m)^[a-z]+$", file.read()))
    texts = [(" ".join(itertools.islice(words, 126)),) for _ in range(count)]
  elif name == "lines":
    with open(settings.text_file, encoding="utf-8") as file:
      texts = [(line.strip(),) for line in file if line.strip()]
  else:
    mrpc = classification.MrpcProcessor()
    is_train = name == "mrpc-train"
    read = mrpc.get_train_examples if is_train else mrpc.get_test_examples
    rows = read(os.path.join(settings.glue_dir, "MRPC"))
    texts = [(row.text_a, row.text_b) for row in rows]
  count = min(len(texts), count)
  return [texts[index * len(texts) // count] for index in range(count)]


def squad_questions(path: str) -> Iterator[tuple[str, str]]:
  """Questions with their passages."""
  from bertlib.tasks.squad import squad_files

  for question in squad_files.read_questions(path):
    yield question.text, question.context


# Sides


def serve(settings: Settings, description: str, predict: Callable) -> Answers:
  """A side of `side_by_side`, whose requests are "try WORK" and "time WORK"."""
  answer: Answer = {"description": description}
  while True:
    request = yield answer
    action, name = request.split()
    work = WORKS[name]
    texts = read_texts(settings, work.texts)
    calls = [texts]
    if work.alone:
      calls = [[text] for text in texts[: settings.latency_runs]]
    if action == "try":
      outputs = states = list(itertools.chain(*map(predict, calls)))
      if work.task == "states":  # too large for an answer
        outputs = [in_folder(settings, f"{os.getpid()}.npy")]
        np.save(outputs[0], np.concatenate(states))
      answer = {"outputs": outputs}
      continue
    start = time.process_time()
    seconds = sorted(timed(predict, call) for call in calls)
    num_texts = sum(map(len, calls))
    answer = {"processor time": (time.process_time() - start) / num_texts}
    if work.alone:
      answer["median"] = statistics.median(seconds)
      answer["99th percentile"] = seconds[-(len(seconds) // 100) - 1]
    else:
      answer["batches"] = sum(seconds) / num_texts


def checksums(vectors: Any) -> list[float]:
  """A number for each vector, float [N, D], to compare sides by."""
  vectors = np.asarray(vectors, np.float32)
  return (vectors @ np.cos(np.arange(vectors.shape[1]))).tolist()


def in_folder(settings: Settings, *names: str) -> str:
  """Path of a file that `make_model` wrote."""
  return os.path.join(settings.folder, *names)


def in_order_of_length(encode: Callable, length: Callable = len) -> Callable:
  """`encode` of texts sorted by length; its outputs are in the given order."""

  def sorted_encode(texts, size):
    order = sorted(range(len(texts)), key=lambda row: -length(texts[row]))
    outputs = np.asarray(encode([texts[row] for row in order], size))
    result = np.empty_like(outputs)
    result[order] = outputs
    return result

  return sorted_encode


def in_sorted_batches(
  settings: Settings, lengths: list[int], run: Callable
) -> list[Any]:
  """Outputs of all rows, computed in batches of similar length.

  A setting `unsorted_size` asks for batches of that size as the rows come.
  """
  order = list(range(len(lengths)))
  fixed_size = getattr(settings, "unsorted_size", None)
  if not fixed_size:
    order.sort(key=lengths.__getitem__, reverse=True)
  outputs: list[Any] = [None] * len(order)
  first = 0
  while first < len(order):
    longest = max(lengths[order[first]], 1)  # if sorted
    size = fixed_size or max(_TOKENS_PER_BATCH // longest, 1)
    batch = order[first : first + size]
    first += size
    for row, output in zip(batch, run(batch)):
      outputs[row] = output
  return outputs


# Models, and this project as a side

CALIBRATION = "calibration.txt"  # texts, for int8
# Layers, hidden size and heads.
SIZES = {
  "bert-base": (12, 768, 12),
  "minilm": (6, 384, 12),
  "tiny": (2, 128, 2),
}


def make_model(settings: Settings) -> Answers:
  """Writes a model, its head random, for ours and for transformers."""
  import tensorflow.compat.v1 as tf

  from bertlib.checkpoints import model_folder
  from bertlib.exchange import to_huggingface
  from bertlib.io import model_files, text_files

  task = TASKS[settings.task]
  config, vocab_file, encoder = read_encoder(settings)
  description = {**task.description, "do_lower_case": True}
  folder = in_folder(settings, "ours")
  tf.gfile.MakeDirs(folder)
  model_folder.write_model_files(folder, description, config, vocab_file)
  checkpoint = os.path.join(folder, "model.ckpt")
  write_checkpoint(settings, config, encoder, checkpoint)
  with open(in_folder(settings, CALIBRATION), "w", encoding="utf-8") as file:
    for text in read_texts(settings, "calibration"):
      print(*text, sep=text_files.SEPARATOR, file=file)
  to_huggingface.convert(
    checkpoint,
    os.path.join(folder, model_files.CONFIG),
    os.path.join(folder, model_files.VOCAB),
    in_folder(settings, "hugging_face"),
    do_lower_case=True,
  )
  yield {"description": f"{model_folder.num_weights(config):,} weights"}


def read_encoder(settings: Settings) -> tuple[Any, str, str | None]:
  """Config, vocabulary and checkpoint of the encoder; None: random weights."""
  import modeling
  from bertlib.checkpoints import model_folder
  from bertlib.exchange import from_huggingface
  from bertlib.io import model_files

  if settings.model == "minilm" and settings.minilm:
    folder = in_folder(settings, "encoder")
    from_huggingface.convert(settings.minilm, folder)
    names = (model_files.CONFIG, model_files.VOCAB, model_files.CHECKPOINT)
    config, *others = (os.path.join(folder, name) for name in names)
    return (model_folder.load_config(config), *others)
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
  settings: Settings, config: Any, encoder: str | None, checkpoint: str
) -> None:
  """Writes a checkpoint of an encoder and, if it has one, a random head."""
  import tensorflow.compat.v1 as tf

  from bertlib.checkpoints import initialize
  from bertlib.compute.fast_compute import FastCompute
  from bertlib.data import model_inputs

  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    ids = tf.ones([1, 8], tf.int32)
    inputs = dict.fromkeys(model_inputs.TOKEN_FEATURES, ids)
    build = predictor_class(settings.task).build
    task = TASKS[settings.task]
    build(task.description, config, inputs, FastCompute())
    tf.train.create_global_step()  # Estimator wants one
    if encoder:
      initialize.initialize_from_checkpoint(encoder)
    session.run(tf.global_variables_initializer())
    for variable in tf.trainable_variables():
      if variable.op.name.endswith("output_weights"):
        random = np.random.RandomState(1)
        values = random.normal(scale=0.2, size=variable.shape)
        session.run(variable.assign(values))
    tf.train.Saver().save(session, checkpoint)


def predictor_class(task: str):
  """The `Predictor` of a task."""
  import modeling
  import run_classifier
  import run_embeddings
  import run_reranker
  import run_squad
  from bertlib.export.onnx_model import EncoderPredictor
  from bertlib.export.predictor import LoadedModel

  class States(EncoderPredictor, LoadedModel):
    """Computes hidden states."""

    record = run_embeddings.RECORD

    @staticmethod
    def build(description, config, inputs, compute):
      del description
      model = modeling.BertModel(
        config, False, *inputs.values(), compute=compute
      )
      return model.get_sequence_output()

  return {
    "labels": run_classifier.Predictor,
    "scores": run_reranker.Predictor,
    "answers": run_squad.Predictor,
    "vectors": run_embeddings.Predictor,
    "states": States,
  }[task]


def predictor(settings: Settings) -> Answers:
  """The `Predictor` of run_classifier, run_squad or run_embeddings."""
  model = predictor_class(settings.task)(
    in_folder(settings, "ours"),
    precision=settings.precision,
    num_threads=settings.num_threads,
    calibration_file=in_folder(settings, CALIBRATION),
  )
  return serve(settings, "in a session", outputs_of(settings.task, model))


def exported(settings: Settings) -> Answers:
  """An ONNX export of the model, by OnnxModel with an engine."""
  import export_model
  from bertlib.export import OnnxModel
  from bertlib.settings.common import QuantizationSettings

  folder = tempfile.mkdtemp(dir=settings.folder)
  source = export_model.find_source(
    in_folder(settings, "ours"), None, None, None, True, None
  )
  engine, precision = settings.precision.split("_")
  is_int8 = precision == "int8"
  calibration = QuantizationSettings(in_folder(settings, CALIBRATION))
  export_model.export_onnx(
    source,
    os.path.join(folder, "onnx"),
    encoder=settings.task == "states",
    int8=calibration if is_int8 else None,
  )
  for_one, for_many = (
    outputs_of(
      settings.task,
      OnnxModel(
        os.path.join(folder, "onnx"),
        engine,
        num_threads=settings.num_threads,
        precision="float32" if is_int8 else precision,
        num_batches=num_batches,
      ),
    )
    for num_batches in (1, os.cpu_count())  # at most one per thread
  )

  def predict(texts):
    return for_many(texts) if len(texts) > 1 else for_one(texts)

  return serve(settings, "exported", predict)


def outputs_of(task: str, model: Any) -> Callable:
  """Function from texts to outputs of a predictor, as other sides give them."""

  def single(texts):  # a text without a second one is a string
    return [text if len(text) > 1 else text[0] for text in texts]

  return {
    "labels": lambda texts: [
      found.probabilities["1"] for found in model.predict(single(texts))
    ],
    "answers": lambda texts: [
      found[0].text if found else "" for found in model.predict(texts)
    ],
    "scores": lambda texts: model.score(texts).tolist(),
    "vectors": lambda texts: checksums(model.encode(single(texts))),
    "states": lambda texts: [
      found.hidden_states for found in model.predict(single(texts))
    ],
  }[task]
