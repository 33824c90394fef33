"""Trains the models of the results page, and keeps a receipt per task.

Each task is trained with several seeds: with this project, and with the same
settings and precision by transformers or sentence-transformers. A receipt has
commands, metrics, times, devices and versions of all trainings, and hashes of
the data. It is written after each training; those that it has are not repeated.

    python -m benchmarks.fine_tuning --data_dir=DATA --model_dir=output/minilm \
        --hugging_face_dir=DIR_OF_THE_SAME_MODEL --tasks=MRPC,RTE

`website.fine_tuning` makes the results page of the receipts.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import shlex
import string
import sys
from typing import Any, NamedTuple

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS, Done, run_command
from bertlib.cli.errors import InputError
from bertlib.io import files, receipt_file
from bertlib.reporting import receipts

_PEERS = ("torch", "transformers", "sentence-transformers")


class Recipe(NamedTuple):
  """A task of the results page."""

  # Names of metrics in our results, by name in the peer's.
  metrics: dict[str, str]
  # Of this project, in order; the last one trains and evaluates.
  commands: tuple[str, ...]
  peer: str = ""  # command of the peer; "" for none
  num_seeds: int = 3  # default number of seeds


_MODEL = (
  " --vocab_file=$BERT_DIR/vocab.txt"
  " --bert_config_file=$BERT_DIR/bert_config.json"
  " --init_checkpoint=$BERT_DIR/bert_model.ckpt"
  " --bias_correction --precision=auto --seed=$SEED --output_dir=$OUTPUT_DIR"
)
_PEER = " --model_dir=$HUGGING_FACE_DIR --precision=$PRECISION --seed=$SEED"


def glue(
  task: str, epochs: int = 3, num_seeds: int = 8, **metrics: str
) -> Recipe:
  """Recipe of a GLUE task; metrics as in `Recipe`.

  The tasks are small, and their metrics differ much between seeds.
  """
  data = f" --data_dir=$DATA_DIR/glue/{task}"
  return Recipe(
    metrics,
    (
      f"run_classifier.py --do_train --do_eval --task_name={task}{data}"
      " --max_seq_length=128 --train_batch_size=32 --learning_rate=5e-5"
      f" --num_train_epochs={epochs}{_MODEL}",
    ),
    f"-m benchmarks.finetune_transformers --task={task}{data}"
    f" --epochs={epochs} --threads=$THREADS{_PEER}",
    num_seeds,
  )


def squad(train: str, dev: str, metrics: dict[str, str], more="") -> Recipe:
  """Recipe of a version of SQuAD, with one seed."""
  train, dev = f"$DATA_DIR/squad/{train}", f"$DATA_DIR/squad/{dev}"
  return Recipe(
    metrics,
    (
      "run_squad.py --do_train --do_predict --do_eval --mask_padding"
      f" --train_file={train} --predict_file={dev}{more}"
      " --max_seq_length=384 --doc_stride=128 --train_batch_size=12"
      f" --learning_rate=1e-4 --num_train_epochs=2{_MODEL}",
    ),
    f"-m benchmarks.finetune_transformers --task=questions --train_file={train}"
    f" --dev_file={dev}{more} --max_seq_length=384 --batch_size=12"
    f" --learning_rate=1e-4 --epochs=2 --threads=$THREADS{_PEER}",
    num_seeds=1,
  )


def entities(train: str, test: str, epochs: int) -> Recipe:
  """Recipe of a data set of named entities."""
  train, test = f"$DATA_DIR/ner/{train}", f"$DATA_DIR/ner/{test}"
  return Recipe(
    {
      "f1": "eval_f1",
      "precision_score": "eval_precision",
      "recall": "eval_recall",
    },
    (
      f"run_ner.py --do_train --do_eval --train_file={train} --dev_file={test}"
      " --max_seq_length=128 --train_batch_size=32 --learning_rate=1e-4"
      f" --num_train_epochs={epochs}{_MODEL}",
    ),
    f"-m benchmarks.finetune_transformers --task=entities --train_file={train}"
    f" --dev_file={test} --learning_rate=1e-4 --epochs={epochs}"
    f" --threads=$THREADS{_PEER}",
  )


_STSB = (
  " --train_file=$DATA_DIR/glue/STS-B/train.tsv"
  " --dev_file=$DATA_DIR/glue/STS-B/dev.tsv"
  " --text_columns=sentence1,sentence2 --score_column=score --max_score=5"
  " --loss=cosent --max_seq_length=128 --train_batch_size=32"
  " --learning_rate=5e-5 --num_train_epochs=1"
)
_LISTS = (
  " --train_file=$OUTPUT_DIR/../lists/lists.jsonl"
  " --dev_file=$OUTPUT_DIR/../lists/dev.jsonl"
  " --text_columns=query,positive,negatives --loss=listwise"
  " --max_seq_length=192 --train_batch_size=8 --learning_rate=2e-4"
  " --num_train_epochs=1"
)
_LOSSES = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy")
_RECORDS = " --max_seq_length=64 --max_predictions_per_seq=10"
_VOCABULARY = " --vocab_file=$OUTPUT_DIR-data/vocab.txt"


def records(part: str, dupe_factor: int) -> str:
  """Command that writes records of pretraining."""
  return (
    f"create_pretraining_data.py --input_file=$TEXT_DIR/{part}.txt"
    f" --output_file=$OUTPUT_DIR-data/{part}.tfrecord{_VOCABULARY}{_RECORDS}"
    f" --dupe_factor={dupe_factor}"
  )


RECIPES = {
  "MRPC": glue("MRPC", accuracy="eval_accuracy", f1="eval_f1"),
  # Twelve: the first eight differed from the peer's by chance.
  "CoLA": glue("CoLA", num_seeds=12, matthews="eval_matthews"),
  "SST-2": glue("SST-2", epochs=1, num_seeds=1, accuracy="eval_accuracy"),
  "STS-B": glue("STS-B", pearson="eval_pearson", spearman="eval_spearman"),
  "RTE": glue("RTE", accuracy="eval_accuracy"),
  "WNLI": glue("WNLI", accuracy="eval_accuracy"),
  "SQuAD-1.1": squad(
    "train-v1.1.part.json",
    "dev-v1.1.json",
    {"exact_match": "exact_match", "f1": "f1"},
  ),
  "SQuAD-2.0": squad(
    "train-v2.0.part.json",
    "dev-v2.0.part.json",
    {"best_f1": "best_f1", "best_exact_match": "best_exact"},
    " --version_2_with_negative",
  ),
  "WNUT17": entities("wnut17/train.conll", "wnut17/test.conll", 5),
  "NCBI-disease": entities(
    "ncbi-disease/train.tsv", "ncbi-disease/test.tsv", 3
  ),
  "STS-B-embeddings": Recipe(
    {"spearman": "eval_spearman", "pearson": "eval_pearson"},
    (f"run_embeddings.py --do_train --do_eval{_STSB}{_MODEL}",),
    f"-m benchmarks.finetune_sentence_transformers{_STSB}{_PEER}",
  ),
  "SQuAD-reranking": Recipe(
    {name: f"eval_{name}" for name in ("ndcg@10", "mrr@10")},
    (
      "-m benchmarks.squad_lists --model_dir=$BERT_DIR"
      " --train_file=$DATA_DIR/squad/train-v1.1.part.json"
      " --dev_file=$DATA_DIR/squad/dev-v1.1.json"
      " --output_dir=$OUTPUT_DIR/../lists",
      f"run_reranker.py --do_train --do_eval{_LISTS}{_MODEL}",
    ),
    f"-m benchmarks.finetune_sentence_transformers{_LISTS}{_PEER}",
  ),
  "pretraining": Recipe(  # from random weights, on four novels
    dict(zip(_LOSSES, _LOSSES)),
    (
      "create_vocab.py --input_file=$TEXT_DIR/train.txt"
      " --output_file=$OUTPUT_DIR-data/vocab.txt --vocab_size=8000",
      records("train", 5),
      records("heldout", 1),
      "run_pretraining.py --do_train --do_eval"
      " --input_file=$OUTPUT_DIR-data/train.tfrecord"
      " --eval_input_file=$OUTPUT_DIR-data/heldout.tfrecord"
      " --eval_batch_size=32 --bert_config_file=$TEXT_DIR/bert_config.json"
      f"{_VOCABULARY}{_RECORDS} --train_batch_size=32 --learning_rate=1e-3"
      " --num_train_steps=3600 --num_warmup_steps=300 --bias_correction"
      " --precision=auto --seed=$SEED --output_dir=$OUTPUT_DIR",
    ),
    num_seeds=1,
  ),
}


def main(_: list[str]) -> None:
  """Trains what the receipts lack."""
  unknown = set(FLAGS.tasks) - set(RECIPES)
  if unknown:
    raise InputError(
      f"--tasks={','.join(sorted(unknown))}: there is no such task. There are"
      f" {', '.join(RECIPES)}"
    )
  side_by_side.check_peers(*_PEERS)
  for task in FLAGS.tasks:
    for seed in range(1, (FLAGS.num_seeds or RECIPES[task].num_seeds) + 1):
      run_seed(task, RECIPES[task], seed)


def run_seed(task: str, recipe: Recipe, seed: int) -> None:
  """Trains both sides with a seed, and adds the results to the receipt."""
  path = os.path.join(FLAGS.receipts, f"{task}.json")
  receipt = read_receipt(path, task, recipe)
  ours, peer = (receipt[side]["runs"] for side in ("ours", "peer"))
  own = [run for run in ours if run["seed"] == seed]
  if not own:
    own.append(train_ours(task, recipe, seed, receipt))
    ours += own
    write_receipt(path, receipt)
  has_peer = any(run["seed"] == seed for run in peer)
  if recipe.peer and FLAGS.peer_python and not has_peer:
    peer.append(train_peer(task, recipe, seed, own[0]["precision"]))
    write_receipt(path, receipt)


# Receipts


def read_receipt(path: str, task: str, recipe: Recipe) -> dict[str, Any]:
  """The receipt of a task, empty if there is none."""
  commands = {
    "ours": [f"python {command}" for command in recipe.commands],
    "peer": [f"python {recipe.peer}"] if recipe.peer else [],
  }
  if not os.path.exists(path):
    empty = {
      side: {"commands": lines, "runs": []} for side, lines in commands.items()
    }
    return {"task": task, "model": FLAGS.model_name, "data": {}, **empty}
  with open(path, encoding="utf-8") as file:
    receipt = json.load(file)
  if any(receipt[side]["commands"] != commands[side] for side in commands):
    raise InputError(f"{path}: is of other commands. Remove it")
  version = receipts.versions()["project"]
  others = {run["versions"]["project"] for run in receipt["ours"]["runs"]}
  if others - {version}:
    raise InputError(
      f"{path}: is of version {', '.join(sorted(others))}, not {version}; one"
      " table row has one version. Remove it"
    )
  return receipt


def write_receipt(path: str, receipt: dict[str, Any]) -> None:
  """Writes the receipt of a task."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with files.atomic_write(path) as file:
    json.dump(receipt, file, indent=1)
    file.write("\n")


# Trainings


def output_dir_of(task: str, seed: int) -> str:
  """Folder of a training of this project."""
  return os.path.join(FLAGS.work_dir, f"{task}-{seed}")


def train_ours(
  task: str, recipe: Recipe, seed: int, receipt: dict[str, Any]
) -> dict[str, Any]:
  """Trains with this project; adds hashes of the data to the receipt."""
  output_dir = output_dir_of(task, seed)
  os.makedirs(f"{output_dir}-data", exist_ok=True)
  values = {"SEED": str(seed), "OUTPUT_DIR": output_dir}
  for command in recipe.commands:
    done = run(sys.executable, command, values)
  with open(os.path.join(output_dir, "run.json"), encoding="utf-8") as file:
    own = json.load(file)["training"]
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
    "device": receipts.device(),
    "versions": own["versions"],
    "metrics": {name: own["results"][name] for name in recipe.metrics.values()},
  }


def train_peer(
  task: str, recipe: Recipe, seed: int, precision: str
) -> dict[str, Any]:
  """Trains with the peer, on the data that this project's side has made."""
  values = {
    "SEED": str(seed),
    "OUTPUT_DIR": output_dir_of(task, seed),
    "PRECISION": precision,
    "THREADS": str(receipts.device()["cores"]),
  }
  done = run(FLAGS.peer_python, recipe.peer, values)
  found = json.loads(done.output.splitlines()[-1])
  return {
    "seed": seed,
    "date": datetime.date.today().isoformat(),
    "processor_seconds": round(done.processor_seconds, 1),
    "precision": precision,
    "device": receipts.device(),
    "versions": peer_versions(),
    "metrics": {ours: found[name] for name, ours in recipe.metrics.items()},
  }


@functools.cache
def peer_versions() -> dict[str, str]:
  """Versions of Python and of the packages of the peers."""
  code = (
    "import importlib.metadata as m, json, platform\n"
    "found = {d.metadata['Name']: d.version for d in m.distributions()}\n"
    f"names = {_PEERS!r}\n"
    "print(json.dumps({'python': platform.python_version()}"
    " | {n: found[n] for n in names if n in found}))"
  )
  return json.loads(run_command([FLAGS.peer_python, "-c", code]).output)


def run(python: str, command: str, values: dict[str, str]) -> Done:
  """Runs a command, with folders and values in place of their names."""
  folders = {
    "DATA_DIR": FLAGS.data_dir,
    "TEXT_DIR": FLAGS.text_dir,
    "BERT_DIR": FLAGS.model_dir,
    "HUGGING_FACE_DIR": FLAGS.hugging_face_dir,
  }
  words = [
    string.Template(word).substitute(folders, **values)
    for word in shlex.split(command)
  ]
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
    tasks=(list(RECIPES), f"Some of {', '.join(RECIPES)}."),
    text_dir=(str, "train.txt, heldout.txt, bert_config.json: pretraining."),
    model_name=("all-MiniLM-L6-v2", "Name of the encoder."),
    work_dir=("output/fine_tuning", "Trained models."),
    receipts=("docs/results/fine_tuning", "Folder of the receipts."),
    num_seeds=(int, "Seeds 1, 2, ...; default: those of the task."),
  )
