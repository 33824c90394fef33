"""Tests of weights that a model does not use, and of weights that are NaN."""

import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tiny_huggingface
from absl import logging
from parametrize import parametrize

import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_reranker
import run_squad
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError

pytestmark = pytest.mark.train

BIAS = "bert/pooler/dense/bias"
# What optimizers and training loops keep beside the weights.
STATE = {
  f"{BIAS}/adam_m": [8],
  f"{BIAS}/adam_v": [8],
  f"{BIAS}/Adam_1": [8],
  f"{BIAS}/ExponentialMovingAverage": [8],
  "beta1_power": [],
  "loss_scale/good_steps": [],
  "current_loss_scale": [],
  "budget/tokens": [],
  "packing/position": [2],
  "save_counter": [],
}
# Trained folders: their script, and a file to predict.
MODELS = {
  "trained": (run_classifier, "lines.txt"),
  "trained_squad": (run_squad, "squad.json"),
  "trained_ner": (run_ner, "ner.conll"),
  "trained_embeddings": (run_embeddings, "lines.txt"),
  "trained_reranker": (run_reranker, "pairs.tsv"),
  "trained_pretraining": (run_pretraining, "lines.txt"),
}
# Ways to use a trained folder, by the commands that do.
USES = {
  "prediction": "{script}.py --do_predict --output_dir={folder}"
  " --predict_file={world}/{file}",
  "prediction elsewhere": "{script}.py --do_predict --output_dir={out}"
  " --predict_file={world}/{file} --init_checkpoint={folder}",
  "SavedModel": "export_model.py --model_dir={folder} --export_dir={out}",
}
EXTRA = {"extra/kernel": np.ones([8, 8], np.float32)}
NAN = {BIAS: np.full([8], np.nan, np.float32)}


@pytest.fixture
def folder_of(world, tmp_path):
  """Returns a copy of a trained folder with more variables."""

  def folder_of(name, more):
    folder = shutil.copytree(world / name, tmp_path / name)
    path = str(folder / "model.ckpt-1")
    values = {key: np.ones(shape, np.float32) for key, shape in STATE.items()}
    variables = run_outputs.read_variables(path) | values | more
    checkpoint_files.write_variables(path, variables)
    return folder

  return folder_of


def use(how, name, folder, world, run=commands.succeed):
  """Uses a trained folder; returns the result of `run`."""
  script, file = MODELS[name]
  if how == "SavedModel":  # of ids alone, which takes a fifth of the time
    (folder / "vocab.txt").unlink()
  places = {"folder": folder, "world": world, "out": f"{folder}_out"}
  line = USES[how].format(script=script.__name__, file=file, **places)
  return run(*line.split())


def test_state_of_a_training_is_no_unused_weight(folder_of, world):
  done = use("prediction", "trained", folder_of("trained", {}), world)
  assert "does not use" not in done.stderr


# The other uses have the weights of a model by what each task shares.
@parametrize(
  "how, name",
  *(("prediction", name) for name in MODELS),
  ("prediction elsewhere", "trained"),
  ("SavedModel", "trained"),
)
def test_an_unused_weight_is_named(how, name, folder_of, world):
  done = use(how, name, folder_of(name, EXTRA), world)
  assert "model.ckpt-1: has weights that the model does not use:" in done.stderr
  # And no state of a training.
  assert "use: extra/kernel. Use the code that trained it" in done.stderr


@parametrize(
  "name, precision",
  *((name, "float32") for name in MODELS if name != "trained_pretraining"),
  ("trained", "bfloat16"),
)
def test_a_predictor_names_unused_weights(name, precision, folder_of, caplog):
  logging.set_verbosity(logging.WARNING)
  script, _ = MODELS[name]
  script.Predictor(str(folder_of(name, EXTRA)), precision=precision).close()
  assert "does not use: extra/kernel. Use the code" in caplog.text


@parametrize("how", *USES)
def test_a_weight_that_is_not_finite_is_refused(how, folder_of, world):
  folder = folder_of("trained", NAN)
  error = use(how, "trained", folder, world, run=commands.fail)
  expected = f"{folder}/model.ckpt-1: {BIAS} contains NaN or Inf."
  assert f"{expected} Use another checkpoint" in error


@parametrize("precision", "float32", "bfloat16")
def test_a_predictor_refuses_a_weight_that_is_not_finite(precision, folder_of):
  folder = str(folder_of("trained", NAN))
  with pytest.raises(InputError, match=f"{BIAS} contains NaN or Inf"):
    run_classifier.Predictor(folder, precision=precision)


def test_huggingface_folders_with_nan_are_refused(tmp_path, monkeypatch, world):
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  weights = tiny_huggingface.tensors("BertForSequenceClassification", 2)
  weights["classifier.weight"][0] = np.nan
  folder = tiny_huggingface.write_folder(tmp_path / "hf", weights)
  for _ in range(2):
    error = commands.fail(
      "run_classifier.py",
      "--do_predict",
      "--max_seq_length=16",
      f"--init_checkpoint={folder}",
      f"--predict_file={world}/lines.txt",
      f"--output_dir={tmp_path}/out",
    )
    assert "output_weights contains NaN or Inf. Use another checkpoint" in error


def test_a_moment_that_is_not_finite_is_not_read(folder_of):
  moment = {f"{BIAS}/adam_v": np.full([8], np.inf, np.float32)}
  run_classifier.Predictor(str(folder_of("trained", moment))).close()
