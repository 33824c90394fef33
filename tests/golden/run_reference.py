"""Lets google-research/bert compute what the slice lacks for want of free text.

`python tests/golden/run_reference.py BERT` takes a checkout of it at commit
f39e881 and writes, for the sentences of `data/own`, what its
`run_classifier.py` reads, converts and predicts: `classifier/*` and
`programs/classifier_*`. It runs on today's TensorFlow, whose missing
`tf.contrib` is stood in for by `layer_norm` alone.
"""

import gzip
import hashlib
import json
import os
import sys
import tempfile
import types

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow.compat.v1 as tf

HERE = os.path.dirname(os.path.abspath(__file__))
TASKS = {
  "mrpc": ("own/MRPC", "MrpcProcessor", ("train", "dev", "test")),
  "cola": ("own/CoLA", "ColaProcessor", ("train", "dev", "test")),
  "mnli": ("own/MNLI", "MnliProcessor", ("train", "dev")),
  "xnli": ("own/XNLI", "XnliProcessor", ("train", "dev")),
}
# Name of the records, task, vocabulary, length, number of padding examples.
RECORDS = [
  ("mrpc_dev", "mrpc", "uncased", 128, 0),
  ("mrpc_dev_all_padded", "mrpc", "uncased", 64, 3),
  ("mrpc_dev_cased_48", "mrpc", "cased", 48, 0),
  ("cola_dev", "cola", "uncased", 16, 0),
  ("mnli_dev", "mnli", "uncased", 24, 0),
  ("xnli_dev", "xnli", "chinese", 32, 0),
]


def layer_norm(inputs, begin_norm_axis, begin_params_axis, scope):
  """Replaces `tf.contrib.layers.layer_norm`, for the last axis."""
  assert begin_norm_axis == begin_params_axis == -1
  with tf.variable_scope(scope, "LayerNorm"):
    size = inputs.shape[-1:]
    beta = tf.get_variable("beta", size, initializer=tf.zeros_initializer())
    gamma = tf.get_variable("gamma", size, initializer=tf.ones_initializer())
  mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
  return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


def import_reference(folder):
  tf.disable_v2_behavior()
  tf.contrib = types.SimpleNamespace(
    layers=types.SimpleNamespace(layer_norm=layer_norm)
  )
  sys.modules["tensorflow"] = tf
  sys.path.insert(0, folder)
  import run_classifier

  return run_classifier


def path(*parts):
  return os.path.join(HERE, *parts)


def to_lines(rows):
  lines = [json.dumps(r, sort_keys=True, separators=(",", ":")) for r in rows]
  return "".join(line + "\n" for line in lines).encode()


def write_packed(content, *parts):
  with open(path(*parts), "wb") as file:
    file.write(gzip.compress(content, 9, mtime=0))


def make_examples(reference):
  """The examples by task and split; writes them, and returns their runs too."""
  examples, runs = {}, []
  for task, (folder, processor, splits) in TASKS.items():
    processor = getattr(reference, processor)()
    for split in splits:
      read = getattr(processor, f"get_{split}_examples")
      examples[task, split] = read(path("data", folder))
      keys = ("guid", "text_a", "text_b", "label")
      rows = [{k: getattr(e, k) for k in keys} for e in examples[task, split]]
      file = f"{task}_{split}_examples.jsonl.gz"
      write_packed(to_lines(rows), "classifier", file)
      runs.append(
        {
          "task": task,
          "split": split,
          "data_dir": folder,
          "labels": processor.get_labels(),
          "count": len(rows),
          "file": file,
          "all_examples_sha256": hashlib.sha256(to_lines(rows)).hexdigest(),
        }
      )
  return examples, runs


def read_records(file):
  for serialized in tf.python_io.tf_record_iterator(file):
    features = tf.train.Example.FromString(serialized).features.feature
    yield {name: list(f.int64_list.value) for name, f in features.items()}


def make_records(reference, examples):
  runs = []
  for name, task, vocab, length, padding in RECORDS:
    labels = getattr(reference, TASKS[task][1])().get_labels()
    tokenizer = reference.tokenization.FullTokenizer(
      path("data/bert/vocab", f"{vocab}.txt"), vocab != "cased"
    )
    given = examples[task, "dev"]
    with tempfile.TemporaryDirectory() as folder:
      file = os.path.join(folder, "records")
      reference.file_based_convert_examples_to_features(
        given + [reference.PaddingInputExample()] * padding,
        labels,
        length,
        tokenizer,
        file,
      )
      records = list(read_records(file))
      with open(file, "rb") as content:
        write_packed(content.read(), "classifier", f"{name}.tf_record.gz")
    runs.append(
      {
        "file": f"{name}.tf_record.gz",
        "task": task,
        "split": "dev",
        "data_dir": TASKS[task][0],
        "labels": labels,
        "vocab": vocab,
        "do_lower_case": vocab != "cased",
        "max_seq_length": length,
        "examples": len(given),
        "padding_examples": padding,
        "records": len(records),
        "content_sha256": hashlib.sha256(to_lines(records)).hexdigest(),
      }
    )
  return runs


def make_predictions(reference, examples, length=64, eval_batch_size=7):
  """Evaluation and prediction files of `run_classifier.py`."""
  tokenizer = reference.tokenization.FullTokenizer(
    path("data/bert/vocab/programs.txt"), do_lower_case=True
  )
  config = reference.modeling.BertConfig.from_json_file(
    path("programs/bert_config.json")
  )
  outputs = {}
  for split in ("dev", "test"):
    features = reference.convert_examples_to_features(
      examples["mrpc", split], ["0", "1"], length, tokenizer
    )
    columns = [
      np.array([getattr(feature, name) for feature in features])
      for name in ("input_ids", "input_mask", "segment_ids", "label_id")
    ]
    with tf.Graph().as_default(), tf.Session() as session:
      inputs = [tf.placeholder(tf.int32, [None, *c.shape[1:]]) for c in columns]
      results = reference.create_model(config, False, *inputs, 2, False)
      checkpoint = path("programs/bert_model.ckpt")
      tf.train.Saver(tf.trainable_variables()).restore(session, checkpoint)
      outputs[split] = [
        session.run(
          results,
          {i: c[n : n + eval_batch_size] for i, c in zip(inputs, columns)},
        )
        for n in range(0, len(features), eval_batch_size)
      ]
  labels = [int(example.label) for example in examples["mrpc", "dev"]]
  losses, of_examples, logits, _ = zip(*outputs["dev"])
  right = np.concatenate(logits).argmax(-1) == labels
  results = {
    "eval_accuracy": right.mean(dtype=np.float32),
    "eval_loss": np.concatenate(of_examples).mean(dtype=np.float32),
    "global_step": 0,
    "loss": np.mean(losses, dtype=np.float32),
  }
  with open(path("programs/classifier_eval_results.txt"), "w") as file:
    file.writelines(f"{key} = {value!s}\n" for key, value in results.items())
  np.savetxt(
    path("programs/classifier_test_results.tsv"),
    np.concatenate([probabilities for *_, probabilities in outputs["test"]]),
    "%.8g",
    delimiter="\t",
  )


def main(folder):
  reference = import_reference(folder)
  examples, example_runs = make_examples(reference)
  runs = {
    "examples": example_runs,
    "features": make_records(reference, examples),
  }
  with open(path("classifier/runs.json"), "w") as file:
    json.dump(runs, file, indent=2, sort_keys=True)
    file.write("\n")
  make_predictions(reference, examples)


if __name__ == "__main__":
  main(*sys.argv[1:])
