"""Sides of `inference` that are this project, and the original.

Each is a function of the flags and of `model`, `task`, `precision` and
`folder`, see `inference_models.make_model`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace

from benchmarks import training_step
from benchmarks.inference_models import predictor_class
from benchmarks.inference_works import (
  TASKS,
  checksums,
  in_folder,
  in_sorted_batches,
  require_task,
  serve,
)
from benchmarks.side_by_side import Answer


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


def estimator(settings: SimpleNamespace) -> Iterator[Answer]:
  """`estimator.predict` as with --do_predict: every call builds a graph."""
  import run_classifier
  import tokenization
  from bertlib.checkpoints import loading, quantization
  from bertlib.compat import estimator_api
  from bertlib.data import tf_records
  from bertlib.tasks.classification import classification_records
  from bertlib.training import inference, step_plan

  require_task(settings, "labels")
  folder = in_folder(settings, "ours")
  checkpoint = in_folder(settings, "ours", "model.ckpt")
  config = loading.load_config(in_folder(settings, "ours", "bert_config.json"))
  length = TASKS[settings.task].description["max_seq_length"]
  own = training_step.training_settings(precision=settings.precision)
  tokenizer = tokenization.FullTokenizer(os.path.join(folder, "vocab.txt"))
  model_fn = run_classifier.model_fn_builder(
    config,
    num_labels=2,
    init_checkpoint=None,
    learning_rate=0.0,
    num_train_steps=0,
    num_warmup_steps=0,
    use_tpu=False,
    use_one_hot_embeddings=False,
    compute=step_plan.read_compute(own),
  )
  model_fn = inference.model_fn_for_inference(
    model_fn,
    own,
    quantization.TrainedEncoder(config, checkpoint, folder, tokenizer, length),
    list,  # the folder has ranges
  )
  model = estimator_api.TPUEstimator(
    model_fn,
    use_tpu=False,
    model_dir=folder,
    config=estimator_api.RunConfig(),
    predict_batch_size=settings.batch_size or 32,
  )

  def predict(texts):
    examples = [
      run_classifier.InputExample(str(number), *text, label="0")
      for number, text in enumerate(texts)
    ]
    with tempfile.TemporaryDirectory() as records:
      path = os.path.join(records, "records")
      classification_records.file_based_convert_examples_to_features(
        examples, ["0", "1"], length, tokenizer, path
      )
      input_fn = classification_records.file_based_input_fn_builder(
        path, length, False, False, trim=True, by_length=True
      )
      rows = model.predict(input_fn, checkpoint_path=checkpoint)
      return [
        float(row["probabilities"][1])
        for row in tf_records.restore_input_order(rows)
      ]

  settings.latency_runs = 2  # a call takes seconds
  return serve(settings, "builds a graph per call", predict)


def saved_model(settings: SimpleNamespace) -> Iterator[Answer]:
  """The SavedModel of export_model.py, from raw text."""
  import tensorflow as tf

  import export_model
  from bertlib.settings.common import QuantizationSettings

  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "exported")
    precision, int8 = settings.precision, None
    if precision == "int8":
      precision, int8 = "auto", QuantizationSettings()
    export_model.export(
      source_of(settings), path, precision=precision, int8=int8
    )
    exported = tf.saved_model.load(path)

  def predict(batch):
    signature, names, output = {
      ("labels", 1): ("text", ["text_a"], "probabilities"),
      ("labels", 2): ("pair", ["text_a", "text_b"], "probabilities"),
      ("answers", 2): ("text", ["question", "passage"], "answer"),
      ("vectors", 1): ("embed", ["text"], "vectors"),
    }[settings.task, len(batch[0])]
    texts = dict(zip(names, map(tf.constant, zip(*batch))))
    outputs = exported.signatures[signature](**texts)[output].numpy()
    if settings.task == "answers":
      return [answer.decode() for answer in outputs]
    if settings.task == "vectors":
      return checksums(outputs)
    return outputs[:, 1].tolist()

  def predict_sorted(texts):
    lengths = [sum(map(len, text)) // 4 for text in texts]  # about the tokens
    return in_sorted_batches(
      settings, lengths, lambda batch: predict([texts[i] for i in batch])
    )

  return serve(settings, "from raw text", predict_sorted)


def tensorflow_lite(settings: SimpleNamespace) -> Iterator[Answer]:
  """TensorFlow Lite, one text at a time."""
  import numpy as np
  import tensorflow as tf

  import export_model
  from bertlib.data import model_inputs, vocabulary
  from bertlib.export import exported_model

  require_task(settings, "labels")
  source = source_of(settings)
  tokenizer = vocabulary.load_tokenizer(
    source.vocab_file, True, source.config.vocab_size
  )
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "exported")
    export_model.export_quantized(source, path)
    model = tf.lite.Interpreter(
      os.path.join(path, exported_model.TFLITE_FILE),
      num_threads=settings.num_threads or os.cpu_count(),
    )
  run = model.get_signature_runner()

  def label(text, second=None):
    encoded = model_inputs.encode_pair(
      tokenizer, text, second, source.description["max_seq_length"]
    )
    used = sum(encoded.input_mask)
    rows = {
      name: np.array([getattr(encoded, name)[:used]], np.int32)
      for name in model_inputs.TOKEN_FEATURES
    }
    return float(run(**rows)["probabilities"][0, 1])

  return serve(
    settings,
    "one text at a time",
    lambda texts: [label(*text) for text in texts],
  )


def source_of(settings: SimpleNamespace):
  """The model as an `export_model.Source`."""
  import export_model

  folder = in_folder(settings, "ours")
  return export_model.find_source(folder, None, None, None, True, None)


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """The original, in a session; all texts are padded to the full length."""
  import numpy as np

  training_step.import_from(settings.reference)
  import tensorflow.compat.v1 as tf

  import modeling
  import run_classifier
  import tokenization

  require_task(settings, "labels")
  length = TASKS[settings.task].description["max_seq_length"]
  tokenizer = tokenization.FullTokenizer(
    in_folder(settings, "ours", "vocab.txt")
  )
  config = modeling.BertConfig.from_json_file(
    in_folder(settings, "ours", "bert_config.json")
  )
  names = ["input_ids", "input_mask", "segment_ids"]
  with tf.Graph().as_default():
    inputs = [tf.placeholder(tf.int32, [None, length]) for _ in names]
    labels = tf.zeros_like(inputs[0][:, 0])
    outputs = run_classifier.create_model(
      config, False, *inputs, labels, 2, use_one_hot_embeddings=False
    )
    session = tf.Session()
    saver = tf.train.Saver(tf.trainable_variables())
    saver.restore(session, in_folder(settings, "ours", "model.ckpt"))

  def predict(texts):
    features = [
      run_classifier.convert_single_example(
        5, run_classifier.InputExample("", *text), [None], length, tokenizer
      )
      for text in texts
    ]
    probabilities = []
    for first in range(0, len(features), 32):
      batch = features[first : first + 32]
      feed = {
        tensor: np.array([getattr(row, name) for row in batch])
        for tensor, name in zip(inputs, names)
      }
      probabilities += session.run(outputs[-1], feed)[:, 1].tolist()
    return probabilities

  return serve(settings, "padded to the full length", predict)
