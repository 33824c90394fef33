"""Trains, predicts, extracts and exports in a checkout; saves all numbers.

python tests/changed_formula.py WORLD OUT.npz SCRIPT,...[,exports] [FLAG ...]

`changed_formula_test.py` runs it in checkouts with another `modeling.py`.
"""

import importlib
import json
import os
import pathlib
import re
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import commands  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
import wrong_input_world  # noqa: E402

from bertlib.checkpoints import checkpoint_files  # noqa: E402
from bertlib.cli.errors import InputError  # noqa: E402
from bertlib.exchange import rewrite  # noqa: E402
from bertlib.export import OnnxModel  # noqa: E402
from bertlib.export.exported_model import ExportedModel  # noqa: E402

# What each command does beside its flags there, and the file of its results.
COMMANDS = {
  "run_classifier": (["--do_predict"], "{out}/test_results.tsv"),
  "run_squad": (["--do_predict"], "{out}/nbest_predictions.json"),
  "run_ner": (["--do_predict"], "{out}/ner_predictions.jsonl"),
  "run_embeddings": (
    ["--do_predict", "--predict_file={world}/lines.txt"],
    "{out}/lines_vectors.npy",
  ),
  "run_reranker": (
    ["--do_predict", "--predict_file={world}/pairs.tsv"],
    "{out}/pairs_predictions.jsonl",
  ),
  "run_pretraining": (["--do_eval"], "{out}/eval_results.txt"),
  "extract_features": ([], "{out}.jsonl"),
}


def numbers_of(path):
  """All numbers of a file."""
  if path.endswith(".npy"):
    return np.load(path)
  text = pathlib.Path(path).read_text()
  return np.array(re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text), float)


def run(script, more, world, out):
  """Runs a command with its flags there, and more."""
  given = more
  if script in COMMANDS:
    given = (*wrong_input_world.COMMANDS[script], "--xla=auto", *more)
  if script.startswith("run_"):  # Adam makes much of gradients near zero
    given = (*given, "--learning_rate=1e-5")
  with commands.in_process(importlib.import_module(script)) as main:
    main(*(text.format(world=world, out=out) for text in given))


def use(folder, world, found):
  """Predictions by a Predictor and by an export of a trained classifier."""
  import run_classifier

  lines = pathlib.Path(world, "test.tsv").read_text().splitlines()
  texts = [line.split("\t")[0] for line in lines]
  with run_classifier.Predictor(folder) as predictor:
    predictions = predictor.predict(texts)
  found["Predictor"] = [[*p.probabilities.values()] for p in predictions]
  flags = [f"--model_dir={folder}", "--export_dir={out}-export"]
  run("export_model", flags, world, folder)
  model = ExportedModel(f"{folder}-export")
  found["export"] = model(text_a=texts)["probabilities"]
  flags = [f"--model_dir={folder}", "--format=onnx"]
  run("export_model", [*flags, "--export_dir={out}-onnx"], world, folder)
  predictions = OnnxModel(f"{folder}-onnx").predict(texts)
  found["onnx"] = [[*p.probabilities.values()] for p in predictions]
  flags = [f"--model_dir={folder}", "--encoder", "--export_dir={out}-gguf"]
  found["gguf"] = is_written("export_model", [*flags, "--format=gguf"], folder)
  flags = [f"--input={folder}", "--output={out}-theirs"]
  found["huggingface"] = is_written("convert_checkpoint", flags, folder)


def is_written(script, flags, folder):
  """False if a command refuses in one line."""
  try:
    run(script, flags, None, folder)
  except InputError as error:
    assert "released code" in str(error), error
    assert "\n" not in str(error)
    return False
  return True


def prepare(world):
  """Gives the world's model no dropout, and weights that make a difference."""
  path = pathlib.Path(world, "bert_config.json")
  config = json.loads(path.read_text())
  # Dropout masks of kernels differ from those of modeling.py.
  config |= dict.fromkeys((n for n in config if "dropout" in n), 0.0)
  path.write_text(json.dumps(config))
  checkpoint = os.path.join(world, "model.ckpt")
  variables = {}
  for name, value in rewrite.read_weights(checkpoint).items():
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    mean = float(name.endswith("gamma"))
    variables[name] = np.float32(draw.normal(mean, 0.5, value.shape))
  checkpoint_files.write_variables(checkpoint, variables)


def main(world, output, scripts, *more):
  """Saves the weights and results of each command by name."""
  found = {}
  prepare(world)
  with tempfile.TemporaryDirectory() as folder:
    for script in filter(COMMANDS.get, scripts.split(",")):
      actions, results = COMMANDS[script]
      out = os.path.join(folder, script)
      run(script, [*actions, *more], world, out)
      found[script] = numbers_of(results.format(out=out))
      if script != "extract_features":
        weights = rewrite.read_weights(tf.train.latest_checkpoint(out))
        found |= {f"{script} {name}": v for name, v in weights.items()}
    if "exports" in scripts:
      use(os.path.join(folder, "run_classifier"), world, found)
  np.savez(output, **found)


if __name__ == "__main__":
  main(*sys.argv[1:])
