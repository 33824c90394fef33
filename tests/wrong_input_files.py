"""Wrong input: folders, checkpoints, records and our own files."""

import functools
import json
import os

import wrong_input_world
from wrong_input_row import Row, named

from bertlib.data import tf_records
from bertlib.tasks.pretraining import pretraining_instances

DATA = ".data-00000-of-00001"
INIT = "--init_checkpoint={case}/model.ckpt"


def of_world(path, change=bytes):
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


def checkpoint(
  source="model.ckpt", index=bytes, data=bytes, folder="", name=None
):
  """Files of a checkpoint, one of which is changed."""
  path = os.path.join(folder, name or os.path.basename(source))
  return {
    f"{path}.index": of_world(f"{source}.index", index),
    f"{path}{DATA}": of_world(f"{source}{DATA}", data),
  }


def trained(source, description=None, **changed):
  """The folder of a trained model with another description or checkpoint."""
  files = checkpoint(f"{source}/model.ckpt-1", folder="trained", **changed)
  for name in ("checkpoint", "model.json", "vocab.txt", "bert_config.json"):
    files[f"trained/{name}"] = of_world(f"{source}/{name}")
  if description is not None:
    files["trained/model.json"] = description
  return files


of_checkpoint = functools.partial(Row, "checkpoints")
USE = "--output_dir={case}/trained --nodo_train --do_predict"

CHECKPOINTS = [
  of_checkpoint(name, "run_classifier", INIT, checkpoint(**damage))
  for name, damage in {
    "data flipped at the end": {"data": flip(-64)},
    "data truncated": {"data": lambda content: content[:-5]},
    "index flipped": {"index": flip(100)},
    "index truncated": {"index": lambda content: content[:-20]},
    "index empty": {"index": lambda content: b""},
  }.items()
]
CHECKPOINTS += [
  of_checkpoint(
    f"{script}, data flipped", script, arguments, checkpoint(data=flip(4000))
  )
  for script, arguments in (
    ("extract_features", INIT),
    (
      "export_model",
      f"--model_dir= {INIT} --bert_config_file={{world}}/bert_config.json"
      " --encoder",
    ),
    ("convert_checkpoint", "--input={case}/model.ckpt --strip_optimizer"),
  )
]
CHECKPOINTS += [
  of_checkpoint(
    "run_classifier evaluates a folder whose only checkpoint is corrupt",
    "run_classifier",
    USE,
    trained("trained", data=flip(900)),
  ),
  of_checkpoint(
    "one of several to average",
    "convert_checkpoint",
    "--average=2 --input={world}/model.ckpt,{case}/model.ckpt",
    checkpoint(data=flip(4000)) | {"vocab.txt": of_world("vocab.txt")},
  ),
  of_checkpoint(
    "a folder instead of a checkpoint",
    "extract_features",
    "--init_checkpoint={world}/trained_pretraining",
    logged="",
  ),
  of_checkpoint(
    "a folder with a released model",
    "extract_features",
    "--init_checkpoint={case}/released",
    checkpoint(folder="released", name="bert_model.ckpt")
    | checkpoint(folder="released", name="other.ckpt"),
    logged="",
  ),
  of_checkpoint(
    "a folder with two models",
    "extract_features",
    "--init_checkpoint={case}",
    checkpoint(name="one.ckpt") | checkpoint(name="two.ckpt"),
  ),
]
CHECKPOINTS += [
  of_checkpoint(name, script, f"--init_checkpoint={given}")
  for name, script, given in (
    ("a folder without a model", "run_classifier", "{world}/mrpc"),
    ("a misspelt model name", "run_classifier", "bert-base-uncasd"),
    ("another misspelt model name", "extract_features", "bert-large-cassed"),
    ("a file of a checkpoint", "run_classifier", "{world}/model.ckpt.index"),
  )
]


def example(**changed):
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


def of_records(name, content, arguments=""):
  given = "--input_file={case}/x.tfrecord " + arguments
  return Row("records", name, "run_pretraining", given, {"x.tfrecord": content})


_BAD_RECORDS = {
  "id 99999": {"input_ids": [2, 99999] + [0] * 14},
  "id -1": {"input_ids": [2, -1] + [0] * 14},
  "id beyond 32 bits": {"input_ids": [2, 2**32 + 5] + [0] * 14},
  "mask 2": {"input_mask": [2] * 16},
  "segment 7": {"segment_ids": [7] * 16},
  "masked position 200": {"masked_lm_positions": [200, 0, 0, 0]},
  "masked id": {"masked_lm_ids": [500, 0, 0, 0]},
  "weight NaN": {"masked_lm_weights": [float("nan")] * 4},
  "next_sentence_label 3": {"next_sentence_labels": [3]},
  "another length": {"input_ids": [2, 5, 3]},
}
RECORDS = [
  *(
    of_records(name, records(**changed))
    for name, changed in _BAD_RECORDS.items()
  ),
  of_records(
    "segment 7 in evaluation",
    records(**_BAD_RECORDS["segment 7"]),
    "--nodo_train --do_eval --output_dir={world}/trained_pretraining",
  ),
  of_records("byte 3 flipped", flip(3)(records())),
  of_records("byte 300 flipped", flip(300)(records())),
  of_records(
    "a record that is no example",
    wrong_input_world.records(example(), b"\xff\x00 no"),
  ),
]


def receipt(**changed):
  values = {
    "script": "run_classifier.py",
    "files": [],
    "versions": {},
    "results": None,
    "started": "",
    "device": {},
  }
  return json.dumps(values | changed)


def description(**changed):
  """The text of a `model.json`; a value of `...` leaves its key out."""
  values = wrong_input_world._OF_TSV | changed
  return json.dumps({k: v for k, v in values.items() if v is not ...})


own_file = functools.partial(Row, "own files")
OWN_FILES = [
  own_file(
    f"model.json: {name}", "run_classifier", USE, trained("trained", text)
  )
  for name, text in {
    "truncated": description()[:10],
    "a list": "[]",
    "labels are text": description(labels="no, yes"),
    "labels are numbers": description(labels=[0, 1]),
    "max_seq_length is text": description(max_seq_length="16"),
    "do_lower_case is a number": description(do_lower_case=1),
    "max_seq_length is negative": description(max_seq_length=-5),
    "a kind that there is not": description(kind="clasification"),
  }.items()
]
OWN_FILES += [
  own_file(
    f"model.json to export: {name}",
    "export_model",
    "--model_dir={case}/trained",
    trained("trained", text),
  )
  for name, text in {
    "lacks labels": description(labels=...),
    "lacks max_seq_length": description(max_seq_length=...),
  }.items()
]
OWN_FILES += [
  own_file(
    f"{script}: another vocabulary than that of the training",
    script,
    arguments,
    trained("trained", description(vocab_sha256="0" * 64)),
  )
  for script, arguments in (
    ("run_classifier", "--vocab_file={case}/trained/vocab.txt " + USE),
    ("export_model", "--model_dir={case}/trained"),
    ("extract_features", "--vocab_file= --init_checkpoint={case}/trained"),
  )
]
OWN_FILES += [
  own_file(
    f"model.json: {key} that there is not",
    "run_embeddings",
    USE + " --predict_file={world}/lines.txt",
    trained(
      "trained_embeddings",
      json.dumps(
        wrong_input_world._OF_EMBEDDINGS
        | {"embedding": {"pooling": "mean", "normalize": True, key: "nosuch"}}
      ),
    ),
  )
  for key in ("pooling", "projection_activation")
]

RUNS = [
  Row("runs", "a single run", "report"),
  *named(
    "runs",
    "report",
    """
a folder that is not there: {case}/run
a folder of data: {world}/mrpc
a run twice: {world}/evaluated/
an output that exists: {world}/evaluated_too --output_file={world}/lines.txt
an output that is metrics of a run: {world}/evaluated_too --overwrite
  --output_file={world}/evaluated/eval_results.txt
""",
  ),
  *(
    Row(
      "runs",
      name,
      "report",
      "{case}/run",
      {f"run/{file}": content for file, content in files.items()},
    )
    for name, files in {
      "metrics that are text": {
        "run.json": receipt(),
        "eval_results.txt": "eval_f1 = 0.5\nall is well\n",
      },
      "truncated predictions": {
        "run.json": receipt(),
        "eval_predictions.jsonl": '{"guid": "dev-1", "g',
      },
      "a truncated receipt": {"run.json": receipt()[:40]},
      "a receipt without entries": {"run.json": "{}"},
      "a receipt that is a list": {"run.json": "[1, 2]"},
      "files of a receipt are text": {"run.json": receipt(files=["a"])},
      "a file lacks its path": {"run.json": receipt(files=[{"use": "data"}])},
      "results are text": {"run.json": receipt(results="good")},
      "an entry lacks its versions": {
        "run.json": json.dumps({"training": {"script": "a.py", "files": []}})
      },
    }.items()
  ),
]

ROWS: list[Row] = [*CHECKPOINTS, *RECORDS, *OWN_FILES, *RUNS]
