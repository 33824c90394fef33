"""Takes the slice of the golden results that the repository holds.

`python tests/golden/take_slice.py GOLDEN DATA` fills this folder from the whole
collection and from the data sets, whose layout it keeps. It selects and
renumbers, and computes no expectation: the hashes of a shortened file are those
of the reference's own output, shortened.
"""

import glob
import gzip
import hashlib
import json
import os
import re
import shutil
import sys

import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))

import tokenization  # noqa: E402

# Files that are taken as they are.
WHOLE = [
  "api.json",
  "classifier/convert_single_example.jsonl",
  "classifier/edge_tsv*",
  "classifier/edge_tsv/*/*.tsv",
  "modeling/pieces/*",
  "modeling/tiny/*",
  "optimization/*",
  "optimization/*/batches.npz",
  "optimization/*/steps.npz",
  "pretraining_data/edge_text.txt",
  "pretraining_data/one_document.txt",
  "pretraining_data/readme.tfrecord",
  "pretraining_data/runs.json",
  "pretraining_data/sample_text.txt",
  "programs/features_*",
  "squad/helpers.jsonl",
  "squad/odd_predictions.jsonl",
  "tokenization/bytes_input.jsonl",
  "tokenization/checkpoint_case_check.jsonl",
  "tokenization/codepoint_*",
  "tokenization/lone_surrogates.jsonl",
  "tokenization/vocab_files.jsonl",
  "tokenization/wordpiece_only.jsonl",
]
DATA = [
  "bert/checkpoint_index_only/chinese_*",
  "bert/config/*L-12*",
  "bert/config/*L-24*",
  "bert/config/*L-2_*",
  "bert/vocab/*",
  "reference_runs/tf_examples.tfrecord",
]

# Lines of `tokenization/*.jsonl.gz` by number: those composed for it, a third
# of the Universal Declaration, naughty strings, emoji, Shakespeare, novels, a
# third of the random code points and pieces. Left out is text of data sets that
# may not be passed on.
LINES = [
  *range(143),
  *range(143, 563, 3),
  *range(563, 875),
  *range(1035, 1145),
  *range(1438, 1897, 3),
]

# Paragraphs by number, counted over all articles of a file.
PARAGRAPHS = {
  "v11_dev": range(2, 10),
  "v11_one_answer": range(2, 10),
  "v20_dev": (1, 4, 10, 17),
  "v20_one_answer": (1, 4, 10, 17),
  "xquad_mixed": range(25),
}

PREDICTIONS = [
  "squad/predictions/v1.1_bert_ensemble_google.json",
  "squad/predictions/v1.1_logistic_regression.json",
  "squad/predictions/v2.0_bert_single_google.json",
  "squad/predictions/v2.0_nlnet.json",
  "reference_runs/squad_predictions.json",
]


def target(*parts):
  path = os.path.join(HERE, *parts)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  return path


def write(content, *parts):
  """Writes bytes, packed without a time where the name ends in `.gz`."""
  if parts[-1].endswith(".gz"):
    content = gzip.compress(content, 9, mtime=0)
  with open(target(*parts), "wb") as file:
    file.write(content)


def write_json(value, *parts):
  content = json.dumps(value, indent=2, sort_keys=True) + "\n"
  write(content.encode(), *parts)


def read(*parts):
  path = os.path.join(*parts)
  with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
    return file.read()


def read_jsonl(*parts):
  return [json.loads(line) for line in read(*parts).splitlines()]


def write_jsonl(rows, *parts):
  lines = [json.dumps(row, separators=(",", ":")) for row in rows]
  write("".join(line + "\n" for line in lines).encode(), *parts)


def sha256(content):
  return hashlib.sha256(content).hexdigest()


def copy(patterns, source, *parts):
  for pattern in patterns:
    for path in glob.glob(os.path.join(source, pattern)):
      if os.path.isfile(path):
        shutil.copyfile(path, target(*parts, os.path.relpath(path, source)))


def slice_tokenization(golden):
  for kind in (
    *("uncased", "cased", "chinese", "multi_cased"),
    *("basic_lower", "basic_cased"),
  ):
    name = f"{kind}.jsonl.gz"
    lines = read(golden, "tokenization", name).splitlines(keepends=True)
    write(b"".join(lines[n] for n in LINES), "tokenization", name)


def slice_optimization(golden):
  """Cuts Adam's slots of all layers but the last to their first two rows."""
  cut = re.compile("bert/(embeddings|encoder/layer_[01])/.*/adam_[mv]")
  for run in ("pretraining_tiny", "classifier_tiny", "squad_tiny"):
    final = np.load(os.path.join(golden, "optimization", run, "final.npz"))
    kept = {
      name: final[name][:2] if cut.fullmatch(name) else final[name]
      for name in final.files
    }
    np.savez_compressed(target("optimization", run, "final.npz"), **kept)


def record_of(feature, length, is_training):
  """The record that the reference writes of a feature."""
  record = {"unique_ids": [feature["unique_id"]]}
  for name in ("input_ids", "input_mask", "segment_ids"):
    values = feature[name]
    record[name] = values + [0] * (length - len(values))
  if is_training:
    record["start_positions"] = [feature["start_position"]]
    record["end_positions"] = [feature["end_position"]]
    record["is_impossible"] = [int(feature["is_impossible"])]
  return record


def content_sha256(features, run):
  lines = [
    json.dumps(
      record_of(feature, run["max_seq_length"], run["is_training"]),
      sort_keys=True,
      separators=(",", ":"),
    )
    for feature in features
  ]
  return sha256("".join(line + "\n" for line in lines).encode())


def slice_squad(golden):
  runs = json.loads(read(golden, "squad", "runs.json"))
  kept_ids = {}
  for name, numbers in PARAGRAPHS.items():
    content = json.loads(read(golden, "squad", f"{name}.json.gz"))
    number, articles = 0, []
    for article in content["data"]:
      paragraphs = []
      for paragraph in article["paragraphs"]:
        if number in numbers:
          paragraphs.append(paragraph)
        number += 1
      if paragraphs:
        articles.append(article | {"paragraphs": paragraphs})
    content["data"] = articles
    name += ".json.gz"
    write(json.dumps(content).encode(), "squad", name)
    kept_ids[name] = set(question_ids("squad", name))

  windows = {}
  for run in runs["features"]:
    ids = kept_ids[run["input"]]
    examples = read_jsonl(golden, "squad", run["examples"])
    numbers = [n for n, e in enumerate(examples) if e["qas_id"] in ids]
    write_jsonl([examples[n] for n in numbers], "squad", run["examples"])
    renumbered = {number: n for n, number in enumerate(numbers)}
    features = read_jsonl(golden, "squad", run["features"])
    digest = content_sha256(features, run)
    assert digest == run["tf_record_content_sha256"], run["features"]
    features = [f for f in features if f["example_index"] in renumbered]
    name = run["features"].removesuffix("_features.jsonl.gz")
    windows[name] = [f["unique_id"] for f in features]
    for number, feature in enumerate(features):
      feature["example_index"] = renumbered[feature["example_index"]]
      feature["unique_id"] = 1000000000 + number
    write_jsonl(features, "squad", run["features"])
    run["tf_record_content_sha256"] = content_sha256(features, run)
    run["count_examples"] = len(numbers)
    run["count_features"] = len(features)

  inputs = {
    run["features"].removesuffix("_features.jsonl.gz"): run["input"]
    for run in runs["features"]
  }
  for run in runs["predictions"]:
    ids = kept_ids[inputs[run["features"]]]
    for name, digest in run["file_sha256"].items():
      # The n-best list does not depend on the threshold and is stored once.
      stored = re.sub("_threshold_.*_nbest", "_threshold_0_nbest", name)
      packed = ".gz" if "nbest" in name else ""
      content = read(golden, "squad", stored + packed)
      assert sha256(content) == digest
      kept = {k: v for k, v in json.loads(content).items() if k in ids}
      content = json.dumps(kept, indent=4) + "\n"
      run["file_sha256"][name] = sha256(content.encode())
    run["count"] = len(ids)
    logits = np.load(os.path.join(golden, "squad", run["logits"]))
    rows = {int(u): n for n, u in enumerate(logits["unique_ids"])}
    rows = [rows[unique_id] for unique_id in windows[run["features"]]]
    np.savez_compressed(
      target("squad", run["logits"]),
      unique_ids=np.arange(len(rows), dtype=np.int64) + 1000000000,
      start_logits=logits["start_logits"][rows],
      end_logits=logits["end_logits"][rows],
    )
  del runs["files"], runs["errors"]
  write_json(runs, "squad", "runs.json")
  texts = read(golden, "squad", "get_final_text.jsonl").splitlines(True)
  write(b"".join(texts[::3]), "squad", "get_final_text.jsonl")


def slice_published_predictions(data):
  """Published predictions for the selected questions, by file name."""
  ids = [
    *question_ids("squad", "v11_dev.json.gz"),
    *question_ids("squad", "v20_dev.json.gz"),
  ]
  kept = {}
  for name in PREDICTIONS:
    answers = json.loads(read(data, name))
    kept[name] = {k: answers[k] for k in ids if k in answers}
  write_json(kept, "squad", "published_predictions.json")


def question_ids(*parts):
  """Files of a data set in this folder, in order."""
  return [
    question["id"]
    for article in json.loads(read(HERE, *parts))["data"]
    for paragraph in article["paragraphs"]
    for question in paragraph["qas"]
  ]


def texts_of(name):
  content = json.loads(read(HERE, "squad", f"{name}.json.gz"))
  for article in content["data"]:
    for paragraph in article["paragraphs"]:
      yield paragraph["context"]
      yield from (question["question"] for question in paragraph["qas"])


def own_texts():
  """Sentences of `data/own`, for which run_reference.py has expectations."""
  for split in ("dev", "test"):
    content = read(HERE, "data", "own", "MRPC", f"{split}.tsv").decode()
    for line in content.splitlines():
      yield from line.split("\t")


def slice_programs(golden, data):
  """Cuts the vocabulary to the pieces in use, and the table to their rows."""
  runs = json.loads(read(golden, "programs", "runs.json"))
  for name in ("v11_dev", "v20_dev"):
    ids = set(question_ids("squad", f"{name}.json.gz"))
    for kind in (
      *("predictions.json", "nbest_predictions.json.gz"),
      *(["null_odds.json"] if name == "v20_dev" else []),
    ):
      file = f"squad_{name}_{kind}"
      content = json.loads(read(golden, "programs", file))
      content = {k: v for k, v in content.items() if k in ids}
      write((json.dumps(content, indent=4) + "\n").encode(), "programs", file)

  tokenizer = tokenization.FullTokenizer(
    os.path.join(data, "bert", "vocab", "uncased.txt"), do_lower_case=True
  )
  texts = [*texts_of("v11_dev"), *texts_of("v20_dev"), *own_texts()]
  texts += read(golden, "programs", "features_input.txt").decode().splitlines()
  pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
  # The reference splits words as they stand in SQuAD one by one, and so may
  # see a piece that the text as a whole has not.
  parts = [*texts, *(word for text in texts for word in text.split())]
  for text in parts:
    pieces.update(tokenizer.tokenize(text))
  rows = sorted(tokenizer.convert_tokens_to_ids(sorted(pieces)))
  vocab = tokenizer.convert_ids_to_tokens(rows)
  write(("\n".join(vocab) + "\n").encode(), "data", "bert/vocab/programs.txt")
  small = tokenization.FullTokenizer(
    target("data", "bert", "vocab", "programs.txt"), do_lower_case=True
  )
  for text in parts:
    assert small.tokenize(text) == tokenizer.tokenize(text), text

  config = json.loads(read(golden, "programs", "bert_config.json"))
  config["vocab_size"] = len(vocab)
  write_json(config, "programs", "bert_config.json")
  checkpoint = tf.train.load_checkpoint(
    os.path.join(golden, "programs", "bert_model.ckpt")
  )
  tensors = {
    name: checkpoint.get_tensor(name)
    for name in sorted(checkpoint.get_variable_to_shape_map())
  }
  for name, tensor in tensors.items():
    if len(tokenizer.vocab) in tensor.shape:
      assert tensor.shape[0] == len(tokenizer.vocab)
      tensors[name] = tensor[rows]
  tf.raw_ops.SaveV2(
    prefix=target("programs", "bert_model.ckpt"),
    tensor_names=list(tensors),
    shape_and_slices=[""] * len(tensors),
    tensors=list(tensors.values()),
  )
  runs["vocab"] = "programs"
  runs["run_classifier"]["data"] = "own/MRPC"
  write_json(runs, "programs", "runs.json")


def main(golden, data):
  copy(WHOLE, golden)
  copy(DATA, data, "data")
  slice_tokenization(golden)
  slice_optimization(golden)
  slice_squad(golden)
  slice_published_predictions(data)
  slice_programs(golden, data)


if __name__ == "__main__":
  main(*sys.argv[1:])
