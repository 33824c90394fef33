"""Wrong input: folders, checkpoints, records and our own files."""

import json
import os

import wrong_input_world
from wrong_input_row import Row

from bertlib.data import tf_records
from bertlib.tasks.pretraining import pretraining_instances

DATA = ".data-00000-of-00001"
INIT = "--init_checkpoint={case}/model.ckpt"


def of_world(path, change=bytes):
  """Changed content of a file of the world."""

  def content(world):
    with open(os.path.join(world, path), "rb") as file:
      return change(file.read())

  return content


def flip(position):
  """Flips 64 bytes from a position, or fewer at the end."""

  def change(content):
    start = position if position >= 0 else len(content) + position
    end = min(start + 64, len(content))
    flipped = bytes(byte ^ 0xFF for byte in content[start:end])
    return content[:start] + flipped + content[end:]

  return change


def checkpoint(source="model.ckpt", index=None, data=None, folder=""):
  """Files of a checkpoint, one of which is changed."""
  name = os.path.join(folder, os.path.basename(source))
  return {
    f"{name}.index": of_world(f"{source}.index", index or bytes),
    f"{name}{DATA}": of_world(f"{source}{DATA}", data or bytes),
  }


def trained(source, **changed):
  """The folder of a trained model, its checkpoint changed."""
  files = checkpoint(f"{source}/model.ckpt-1", folder="trained", **changed)
  names = ["checkpoint", "model.json", "vocab.txt", "bert_config.json"]
  return files | {
    f"trained/{name}": of_world(f"{source}/{name}") for name in names
  }


_DAMAGE = {
  "data flipped at the start": ({"data": flip(0)}, DATA),
  "data flipped in the middle": ({"data": flip(4000)}, DATA),
  "data flipped at the end": ({"data": flip(-64)}, DATA),
  "data truncated": ({"data": lambda content: content[:-5]}, DATA),
  "data empty": ({"data": lambda content: b""}, DATA),
  "index flipped": ({"index": flip(100)}, ".index"),
  "index truncated": ({"index": lambda content: content[:-20]}, ".index"),
  "index empty": ({"index": lambda content: b""}, ".index"),
}

CHECKPOINTS = [
  Row(
    "checkpoints",
    name,
    "run_classifier",
    [INIT],
    f"{{case}}/model.ckpt{named}",
    checkpoint(**damage),
  )
  for name, (damage, named) in _DAMAGE.items()
]
CHECKPOINTS += [
  Row(
    "checkpoints",
    f"{script}, data flipped",
    script,
    arguments,
    f"{{case}}/model.ckpt{DATA}",
    checkpoint(data=flip(4000)),
  )
  for script, arguments in (
    ("run_squad", [INIT]),
    ("run_ner", [INIT]),
    ("run_pretraining", [INIT]),
    ("extract_features", [INIT]),
    (
      "export_model",
      [
        "--model_dir=",
        INIT,
        "--bert_config_file={world}/bert_config.json",
        "--encoder",
      ],
    ),
    ("convert_checkpoint", ["--input={case}/model.ckpt", "--strip_optimizer"]),
  )
]
CHECKPOINTS += [
  Row(
    "checkpoints",
    f"{script} evaluates a folder whose only checkpoint is corrupt",
    script,
    ["--output_dir={case}/trained", "--nodo_train", "--do_predict"],
    f"{{case}}/trained/model.ckpt-1{DATA}",
    trained(source, data=flip(900)),
  )
  for script, source in (
    ("run_classifier", "trained"),
    ("run_squad", "trained_squad"),
    ("run_ner", "trained_ner"),
  )
]
CHECKPOINTS += [
  Row(
    "checkpoints",
    "one of several to average",
    "convert_checkpoint",
    ["--average=2", "--input={world}/model.ckpt,{case}/model.ckpt"],
    f"{{case}}/model.ckpt{DATA}",
    checkpoint(data=flip(4000)) | {"vocab.txt": of_world("vocab.txt")},
  ),
  Row(
    "checkpoints",
    "a folder instead of a checkpoint",
    "extract_features",
    ["--init_checkpoint={world}/trained_pretraining"],
  ),
  Row(
    "checkpoints",
    "a folder with a released model",
    "extract_features",
    ["--init_checkpoint={case}/released"],
    files={
      f"released/bert_model.ckpt{ending}": of_world(f"model.ckpt{ending}")
      for ending in (".index", DATA)
    }
    | {
      f"released/other.ckpt{ending}": of_world(f"model.ckpt{ending}")
      for ending in (".index", DATA)
    },
  ),
  Row(
    "checkpoints",
    "a folder with two models",
    "extract_features",
    ["--init_checkpoint={case}"],
    "one.ckpt, two.ckpt",
    {
      f"{name}.ckpt{ending}": of_world(f"model.ckpt{ending}")
      for ending in (".index", DATA)
      for name in ("one", "two")
    },
  ),
  Row(
    "checkpoints",
    "a folder without a model",
    "run_classifier",
    ["--init_checkpoint={world}/mrpc"],
    "{world}/mrpc",
  ),
  Row(
    "checkpoints",
    "a misspelt model name",
    "run_classifier",
    ["--init_checkpoint=bert-base-uncasd"],
    "bert-base-uncased",
  ),
  Row(
    "checkpoints",
    "another misspelt model name",
    "extract_features",
    ["--init_checkpoint=bert-large-cassed"],
    "bert-large-cased",
  ),
  Row(
    "checkpoints",
    "a file of a checkpoint",
    "run_classifier",
    ["--init_checkpoint={world}/model.ckpt.index"],
    "{world}/model.ckpt.index",
  ),
]


def example(**changed):
  """A serialized pretraining record."""
  row = {
    "input_ids": [2, 5, 6, 3] + [0] * 12,
    "input_mask": [1] * 4 + [0] * 12,
    "segment_ids": [0] * 16,
    "masked_lm_positions": [1, 0, 0, 0],
    "masked_lm_ids": [7, 0, 0, 0],
    "masked_lm_weights": [1.0, 0.0, 0.0, 0.0],
    "next_sentence_labels": [0],
  } | changed
  encode = tf_records.record_encoder(pretraining_instances.record_layout(16, 4))
  return encode(row)


def records(**changed):
  """A file of four records, number 2 of which is changed."""
  good = example()
  return wrong_input_world.records(good, good, example(**changed), good)


_BAD_RECORDS = {
  "id 99999": {"input_ids": [2, 99999] + [0] * 14},
  "id -1": {"input_ids": [2, -1] + [0] * 14},
  "id beyond 32 bits": {"input_ids": [2, 2**32 + 5] + [0] * 14},
  "id of padding": {"input_ids": [2, 5, 3] + [0] * 12 + [99]},
  "mask 2": {"input_mask": [2] * 16},
  "segment 7": {"segment_ids": [7] * 16},
  "segment -1": {"segment_ids": [0, -1] + [0] * 14},
  "masked position 200": {"masked_lm_positions": [200, 0, 0, 0]},
  "masked position -1": {"masked_lm_positions": [-1, 0, 0, 0]},
  "masked id": {"masked_lm_ids": [500, 0, 0, 0]},
  "weight NaN": {"masked_lm_weights": [float("nan")] * 4},
  "next_sentence_label 3": {"next_sentence_labels": [3]},
  "next_sentence_label -1": {"next_sentence_labels": [-1]},
  "another length": {"input_ids": [2, 5, 3]},
}
_FILE = "--input_file={case}/x.tfrecord"
RECORDS = [
  Row(
    "records",
    name,
    "run_pretraining",
    [_FILE],
    "{case}/x.tfrecord: record 2 ",
    {"x.tfrecord": records(**changed)},
  )
  for name, changed in _BAD_RECORDS.items()
]
RECORDS += [
  Row(
    "records",
    f"{name} in evaluation",
    "run_pretraining",
    [
      _FILE,
      "--nodo_train",
      "--do_eval",
      "--output_dir={world}/trained_pretraining",
    ],
    "{case}/x.tfrecord: record 2 ",
    {"x.tfrecord": records(**_BAD_RECORDS[name])},
  )
  for name in ("id 99999", "segment 7", "next_sentence_label 3")
]
RECORDS += [
  Row(
    "records",
    f"byte {place} flipped",
    "run_pretraining",
    [_FILE],
    "{case}/x.tfrecord: record ",
    {"x.tfrecord": flip(place)(records())},
  )
  for place in (3, 40, 300, -3)
]
RECORDS.append(
  Row(
    "records",
    "a record that is no example",
    "run_pretraining",
    [_FILE],
    "{case}/x.tfrecord: record 1 ",
    {"x.tfrecord": wrong_input_world.records(example(), b"\xff\x00 no")},
  )
)


def receipt(**changed):
  """The text of a receipt; a value of `...` leaves its key out."""
  values = {
    "script": "run_classifier.py",
    "path": "run.json",
    "given": ["--nodo_eval"],
    "files": [],
    "code": {},
    "versions": {},
    "results": None,
  } | changed
  return json.dumps({k: v for k, v in values.items() if v is not ...})


def description(**changed):
  """The text of a `model.json`; a value of `...` leaves its key out."""
  values = wrong_input_world._OF_TSV | changed
  return json.dumps({k: v for k, v in values.items() if v is not ...})


_RECEIPTS = {
  "truncated": receipt()[:40],
  "empty": "",
  "a list": "[1, 2]",
  "given is a number list": receipt(given=[1, 2]),
  "given is a string": receipt(given="--do_train"),
  "given is an object": receipt(given={}),
  "lacks all but script and given": json.dumps(
    {"script": "run_classifier.py", "given": []}
  ),
  "files are strings": receipt(files=["a"]),
  "a file lacks its path": receipt(files=[{"what": "data", "flags": []}]),
  "code is a list": receipt(code=[]),
  "results are text": receipt(results="good"),
}
_DESCRIPTIONS = {
  "truncated": description()[:10],
  "a list": "[]",
  "labels are text": description(labels="no, yes"),
  "labels are numbers": description(labels=[0, 1]),
  "max_seq_length is text": description(max_seq_length="16"),
  "do_lower_case is a number": description(do_lower_case=1),
  "max_seq_length is negative": description(max_seq_length=-5),
  "a kind that there is not": description(kind="clasification"),
}
OWN_FILES = [
  Row(
    "own files",
    f"receipt: {name}",
    "run_classifier",
    ["--rerun={case}/run.json"],
    "{case}/run.json",
    {"run.json": text},
  )
  for name, text in _RECEIPTS.items()
]
_WHOLE_RECEIPT = {"started": "2026-11-25T12:00:00+00:00", "device": {}}
OWN_FILES += [
  Row(
    "own files",
    f"receipt: {name}",
    script,
    ["--rerun={case}/run.json", *arguments],
    "{case}/run.json",
    {"run.json": receipt(script=f"{script}.py", given=given, **_WHOLE_RECEIPT)},
  )
  for name, script, given, arguments in (
    (
      "given has a flag file",
      "run_classifier",
      ["--flagfile=/etc/passwd"],
      [],
    ),
    ("given has a word", "extract_features", ["--layers=-1", "words"], []),
    ("given has a terminator", "run_squad", ["--"], []),
    (
      "given names another output than the command line",
      "run_squad",
      ["--save_logits=precious.npz"],
      [],
    ),
  )
]
OWN_FILES += [
  Row(
    "own files",
    f"model.json: {name}",
    "run_classifier",
    ["--output_dir={case}/trained", "--nodo_train", "--do_predict"],
    "{case}/trained/model.json",
    trained("trained") | {"trained/model.json": text},
  )
  for name, text in _DESCRIPTIONS.items()
]
OWN_FILES += [
  Row(
    "own files",
    f"model.json to export: {name}",
    "export_model",
    ["--model_dir={case}/trained"],
    "{case}/trained/model.json",
    trained("trained") | {"trained/model.json": text},
  )
  for name, text in {
    "truncated": description()[:-3],
    "lacks labels": description(labels=...),
    "lacks max_seq_length": description(max_seq_length=...),
  }.items()
]

OWN_FILES += [
  Row(
    "own files",
    f"{script}: another vocabulary than that of the training",
    script,
    arguments,
    "{case}/trained/vocab.txt",
    trained("trained")
    | {
      "trained/model.json": description(vocab_sha256="0" * 64),
    },
  )
  for script, arguments in (
    (
      "run_classifier",
      [
        "--output_dir={case}/trained",
        "--vocab_file={case}/trained/vocab.txt",
        *("--nodo_train", "--do_predict"),
      ],
    ),
    ("export_model", ["--model_dir={case}/trained"]),
    ("extract_features", ["--vocab_file=", "--init_checkpoint={case}/trained"]),
  )
]
OWN_FILES += [
  Row(
    "own files",
    f"model.json: {key} that there is not",
    "run_embeddings",
    [
      *("--output_dir={case}/trained", "--nodo_train", "--do_predict"),
      "--predict_file={world}/lines.txt",
    ],
    "{case}/trained/model.json",
    trained("trained_embeddings")
    | {
      "trained/model.json": json.dumps(
        wrong_input_world._OF_EMBEDDINGS
        | {"embedding": {"pooling": "mean", "normalize": True, key: "nosuch"}}
      )
    },
  )
  for key in ("pooling", "projection_activation")
]

_METRICS = {"run/eval_results.txt": "eval_f1 = 0.5\n"}
RUNS = [
  Row("runs", name, "report", arguments, error, files)
  for name, arguments, error, files in [
    ("a single run", [], "{world}/evaluated: ", {}),
    ("a folder that is not there", ["{case}/run"], "{case}/run: ", {}),
    ("a folder of data", ["{world}/mrpc"], "{world}/mrpc: ", {}),
    ("a run twice", ["{world}/evaluated/"], "{world}/evaluated: ", {}),
    (
      "an output that exists",
      ["{world}/evaluated_too", "--output_file={world}/lines.txt"],
      "--output_file={world}/lines.txt: ",
      {},
    ),
    (
      "an output that is metrics of a run",
      [
        "{world}/evaluated_too",
        "--output_file={world}/evaluated/eval_results.txt",
        "--overwrite",
      ],
      "{world}/evaluated/eval_results.txt: ",
      {},
    ),
    (
      "metrics that are text",
      ["{case}/run"],
      "{case}/run/eval_results.txt, line 2: ",
      {"run/eval_results.txt": "eval_f1 = 0.5\nall is well\n"},
    ),
    (
      "truncated dev scores",
      ["{case}/run"],
      "{case}/run/dev_scores.jsonl, line 1: ",
      _METRICS | {"run/dev_scores.jsonl": '{"step": 1, "f'},
    ),
    (
      "a truncated receipt",
      ["{case}/run"],
      "{case}/run/run.json: ",
      _METRICS | {"run/run.json": receipt()[:40]},
    ),
  ]
]


ROWS: list[Row] = [*CHECKPOINTS, *RECORDS, *OWN_FILES, *RUNS]
