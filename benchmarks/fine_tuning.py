"""Trains the models of the results page, and keeps a receipt per task.

Each task is trained with several seeds: with this project, and with the same
settings and precision by transformers or sentence-transformers. A receipt has
the task, the commands of both, the names of the metrics and the number of
seeds, and of all trainings metrics, times, devices and versions, and hashes of
the data. It is written after each training; those that it has are not repeated.
Another folder of --receipts starts with the commands of the published ones.

    python -m benchmarks.fine_tuning --data_dir=DATA --model_dir=output/minilm \
        --hugging_face_dir=DIR_OF_THE_SAME_MODEL --tasks=MRPC,RTE

`website.fine_tuning` makes the results page of the receipts.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import shlex
import string
import sys
from typing import Any

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS, Done, run_command
from bertlib.cli.errors import InputError
from bertlib.io import files, receipt_file
from bertlib.reporting import receipts

PUBLISHED = pathlib.Path("docs/results/fine_tuning")  # receipts of the page
TASKS = {path.stem: path for path in sorted(PUBLISHED.glob("*.json"))}


def main(_: list[str]) -> None:
  """Trains what the receipts lack."""
  side_by_side.check_peers("sentence-transformers", "seqeval")
  for task in FLAGS.tasks:
    path = os.path.join(FLAGS.receipts, f"{task}.json")
    receipt = read_receipt(path)
    for seed in range(1, (FLAGS.num_seeds or receipt["num_seeds"]) + 1):
      run_seed(path, receipt, seed)


def run_seed(path: str, receipt: dict[str, Any], seed: int) -> None:
  """Trains both sides with a seed, and adds the results to the receipt."""
  ours, peer = (receipt[side]["runs"] for side in ("ours", "peer"))
  own = [run for run in ours if run["seed"] == seed]
  if not own:
    own.append(train_ours(receipt, seed))
    ours += own
    write_receipt(path, receipt)
  has_peer = any(run["seed"] == seed for run in peer)
  if receipt["peer"]["commands"] and FLAGS.peer_python and not has_peer:
    peer.append(train_peer(receipt, seed, own[0]["precision"]))
    write_receipt(path, receipt)


# Receipts


def read_receipt(path: str) -> dict[str, Any]:
  """A receipt; if there is none, the published one without its trainings."""
  is_new = not os.path.exists(path)
  published = TASKS[pathlib.Path(path).stem]
  with open(published if is_new else path, encoding="utf-8") as file:
    receipt = json.load(file)
  if is_new:
    receipt |= {"model": FLAGS.model_name, "data": {}}
    for side in ("ours", "peer"):
      receipt[side]["runs"] = []
  version = receipts.versions()["project"]
  others = {run["versions"]["project"] for run in receipt["ours"]["runs"]}
  if others - {version}:
    raise InputError(
      f"{path}: is of version {', '.join(sorted(others))}, not {version}; one"
      " table row has one version. Name another folder as --receipts"
    )
  return receipt


def write_receipt(path: str, receipt: dict[str, Any]) -> None:
  """Writes the receipt of a task."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with files.atomic_write(path) as file:
    json.dump(receipt, file, indent=1)
    file.write("\n")


# Trainings


def output_dir_of(receipt: dict[str, Any], seed: int) -> str:
  """Folder of a training of this project."""
  return os.path.join(FLAGS.work_dir, f"{receipt['task']}-{seed}")


def train_ours(receipt: dict[str, Any], seed: int) -> dict[str, Any]:
  """Trains with this project; adds hashes of the data to the receipt."""
  output_dir = output_dir_of(receipt, seed)
  os.makedirs(f"{output_dir}-data", exist_ok=True)
  for command in receipt["ours"]["commands"]:
    done = run(sys.executable, command, seed, output_dir)
  own = receipt_file.last_training(output_dir)
  receipt["data"] = {
    os.path.basename(entry["path"]): entry["sha256"]
    for entry in own["files"]
    if entry["use"] in (receipt_file.TRAINING_DATA, receipt_file.DEV_DATA)
  }
  return {
    "seed": seed,
    "date": own["ended"][:10],
    "processor_seconds": round(done.processor_seconds, 1),
    "precision": own["precision"],
    "device": own["device"],
    "versions": own["versions"],
    "metrics": {name: own["results"][name] for name in receipt["metrics"]},
  }


def train_peer(
  receipt: dict[str, Any], seed: int, precision: str
) -> dict[str, Any]:
  """Trains with the peer, on the data that this project's side has made."""
  (command,) = receipt["peer"]["commands"]
  output_dir = output_dir_of(receipt, seed)
  done = run(FLAGS.peer_python, command, seed, output_dir, precision)
  found = json.loads(done.output.splitlines()[-1])
  return {
    "seed": seed,
    "date": datetime.date.today().isoformat(),
    "processor_seconds": round(done.processor_seconds, 1),
    "precision": precision,
    "device": receipts.device(),
    "versions": found["versions"],
    "metrics": {name: found[name] for name in receipt["metrics"]},
  }


def run(
  python: str, command: str, seed: int, output_dir: str, precision: str = ""
) -> Done:
  """Runs a command, with folders and values in place of their names."""
  values = {
    "SEED": str(seed),
    "OUTPUT_DIR": output_dir,
    "PRECISION": precision,
    "THREADS": str(receipts.device()["cores"]),
    "DATA_DIR": FLAGS.data_dir,
    "TEXT_DIR": FLAGS.text_dir,
    "BERT_DIR": FLAGS.model_dir,
    "HUGGING_FACE_DIR": FLAGS.hugging_face_dir,
  }
  _, *words = (  # without "python"
    string.Template(word).substitute(values) for word in shlex.split(command)
  )
  print("$", "python", *words, flush=True)
  done = run_command([python, *words], watch=sys.stderr.write)
  print(done.output, flush=True)
  return done


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    data_dir="Folder of all data.",
    model_dir="Encoder for this project.",
    hugging_face_dir="The same encoder for peers.",
    peer_python=side_by_side.PEER_PYTHON,
    tasks=(TASKS, "Tasks."),
    text_dir=(str, "train.txt, heldout.txt, bert_config.json: pretraining."),
    model_name=("all-MiniLM-L6-v2", "Name of the encoder."),
    work_dir=("output/fine_tuning", "Trained models."),
    receipts=(str(PUBLISHED), "Folder of the receipts."),
    num_seeds=(int, "Seeds 1, 2, ...; default: those of the task."),
  )
