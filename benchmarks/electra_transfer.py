"""Compares ELECTRA with masked LM by what they teach a small encoder.

From random weights, on equal tokens of the same records, with several seeds:
masked LM, ELECTRA with shared tables, ELECTRA with disentangled ones, and
nothing. Each encoder is fine-tuned on 2,000 sentences of SST-2, and a logistic
regression learns these from its frozen mean vectors. Prints the accuracies as a
Markdown table, and plots the losses of the first seed.

    python -m benchmarks.electra_transfer --text_file=novels.txt \
        --vocab_file=output/novels-vocab.txt --sst2_dir=glue/SST-2 \
        --bert_config_file=output/novels-config.json --folder=output/electra
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys

import numpy as np

from benchmarks import pretraining_variants, side_by_side
from benchmarks.pretraining_variants import path, read_scalars
from benchmarks.side_by_side import FLAGS
from bertlib.io import text_files
from website import markdown

# Disentangled tables are a field of the objective, without a flag.
_DISENTANGLED = """
import dataclasses, runpy
from bertlib.tasks.pretraining import objectives
objectives.OBJECTIVES["electra"] = dataclasses.replace(
  objectives.ELECTRA, is_disentangled=True
)
runpy.run_path("run_pretraining.py", run_name="__main__")
"""
# Words of the command, by name.
OBJECTIVES = {
  "masked LM": ["run_pretraining.py", "--objective=mlm"],
  "ELECTRA": ["run_pretraining.py", "--objective=electra"],
  "ELECTRA, disentangled": ["-c", _DISENTANGLED, "--objective=electra"],
}
UNTRAINED = "none: random weights"
MASKS = ["--masked_lm_prob=0.25"]
DATA = [
  *MASKS,
  "--segments=documents",
  "--dupe_factor=1",
  "--short_seq_prob=0.1",
]
TRAINING = [
  *pretraining_variants.SIZES,
  *MASKS,
  *("--do_train", "--do_eval", "--eval_steps=500", "--eval_batch_size=32"),
  *("--remask", "--mask_split=85,0,15", "--train_batch_size=32"),
  *("--learning_rate=1e-3", "--warmup_proportion=0.1", "--precision=auto"),
]
FINE_TUNING = [
  *("run_classifier.py", "--task_name=SST-2", "--do_train", "--do_eval"),
  *("--max_seq_length=64", "--train_batch_size=32", "--learning_rate=3e-4"),
  *("--num_train_epochs=5", "--bias_correction", "--precision=auto"),
]
NUM_SENTENCES = 2000
CURVES = {
  "masked_lm_loss": "held-out masked LM loss (nat)",
  "disc_auc": "held-out AUC of the discriminator",
}


def main(_: list[str]) -> None:
  """Trains all encoders, and reports what they are worth."""
  os.makedirs(path("SST-2"), exist_ok=True)
  parts = zip(
    ("trained_on", "held_out"), pretraining_variants.split_documents()
  )
  records = [
    pretraining_variants.write_records(name, documents, DATA)
    for name, documents in parts
  ]
  sentences = {name: cut(f"{name}.tsv") for name in ("train", "dev")}
  names, seeds = [*OBJECTIVES, UNTRAINED], range(1, FLAGS.seeds + 1)
  accuracies = {
    (name, seed): measure(pretrain(name, seed, records), seed, sentences)
    for seed, name in itertools.product(seeds, names)
  }
  rows = []
  for name in names:
    row = [name]
    for values, others in zip(
      zip(*(accuracies[name, seed] for seed in seeds)),
      zip(*(accuracies[UNTRAINED, seed] for seed in seeds)),
    ):
      gains = [own - other for own, other in zip(values, others)]
      row += [mean_and_error(values), mean_and_error(gains)]
    rows.append(row)
  measures = (
    "fine-tuned",
    "more than untrained",
    "frozen",
    "more than untrained",
  )
  print(markdown.table(["pretraining", *measures], rows))
  scalars = {name: read_scalars(f"{name}-1") for name in OBJECTIVES}
  for metric, label in CURVES.items():
    curves = {
      name: found[metric] for name, found in scalars.items() if metric in found
    }
    pretraining_variants.draw(metric, label, curves)


def cut(name: str) -> list[tuple[str, int]]:
  """Sentences and labels of SST-2, the first ones, copied for training."""
  lines = [*text_files.read_lines(os.path.join(FLAGS.sst2_dir, name))]
  lines = lines[: NUM_SENTENCES + 1]
  with open(os.path.join(path("SST-2"), name), "w", encoding="utf-8") as file:
    file.writelines(lines)
  rows = (line.rstrip("\n").split("\t") for line in lines[1:])
  return [(sentence, int(label)) for sentence, label in rows]


def pretrain(name: str, seed: int, records: list[str]) -> str:
  """Folder of an encoder that is trained, or only initialized."""
  folder = path(f"{name}-{seed}")
  if not os.path.exists(os.path.join(folder, "run.json")):
    command = OBJECTIVES.get(name, OBJECTIVES["masked LM"])
    length = {"token_budget": FLAGS.tokens}
    if name == UNTRAINED:
      length = {"num_train_steps": 1, "learning_rate": 1e-12}
    pretraining_variants.train(
      f"{name}-{seed}", [*command, *TRAINING], *records, seed=seed, **length
    )
  return folder


def measure(
  encoder: str, seed: int, sentences: dict[str, list[tuple[str, int]]]
) -> tuple[float, float]:
  """Accuracies in % of an encoder, fine-tuned and frozen."""
  from sklearn import linear_model, preprocessing

  folder = f"{encoder}-SST-2"
  side_by_side.run_python(
    *FINE_TUNING,
    watch=sys.stderr.write,
    data_dir=path("SST-2"),
    init_checkpoint=encoder,
    seed=seed,
    output_dir=folder,
  )
  with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
    fine_tuned = json.load(file)["training"]["results"]["eval_accuracy"]
  vectors, labels = {}, {}
  for part, rows in sentences.items():
    texts = os.path.join(folder, f"{part}.txt")
    with open(texts, "w", encoding="utf-8") as file:
      file.writelines(f"{sentence}\n" for sentence, _ in rows)
    side_by_side.run_python(
      *("extract_features.py", "--pooling=mean", "--output_format=npz"),
      input_file=texts,
      init_checkpoint=encoder,
      max_seq_length=64,
      output_file=(file := os.path.join(folder, f"{part}.npz")),
    )
    with np.load(file) as arrays:
      vectors[part] = arrays["vectors"]
    labels[part] = [label for _, label in rows]
  scaler = preprocessing.StandardScaler().fit(vectors["train"])
  model = linear_model.LogisticRegression(C=0.1, max_iter=1000)
  model.fit(scaler.transform(vectors["train"]), labels["train"])
  frozen = model.score(scaler.transform(vectors["dev"]), labels["dev"])
  return 100 * fine_tuned, 100 * frozen


def mean_and_error(values: list[float]) -> str:
  """Mean of values of seeds, and its standard error."""
  error = statistics.stdev(values) / len(values) ** 0.5 if values[1:] else 0.0
  return f"{statistics.mean(values):.1f} ± {error:.1f}"


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    **pretraining_variants.INPUTS,
    sst2_dir="Folder of SST-2.",
    seeds=(3, "Seeds 1, 2, ..."),
  )
