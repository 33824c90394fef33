"""Tests of models in forked processes, as web servers and workers are.

The model is as large as MiniLM: the products of a smaller one take no threads,
and so end in a fork too.
"""

import json
import os
import signal
import subprocess
import sys

import commands
import numpy as np
import pytest
import wrong_input_world

pytestmark = pytest.mark.process

SIZES = {
  "hidden_size": 384,
  "num_hidden_layers": 6,
  "num_attention_heads": 12,
  "intermediate_size": 1536,
}
DESCRIPTION = {
  "script": "run_embeddings",
  "embedding": {"pooling": "mean", "normalize": True},
  "max_seq_length": 32,
  "do_lower_case": True,
}
TEXTS = ["the cat sat . the dog ran home .", "ann went to rome ."] * 20

# Arguments: the folder, the class, and what the parent does before it forks.
PROGRAM = """
import json, os, sys
import numpy as np
from bertlib.cli.errors import InputError
folder, kind, before = sys.argv[1:4]
texts = json.loads(sys.argv[4])

def load():
  if kind == "OnnxModel":
    from bertlib.export import OnnxModel
    return OnnxModel(f"{folder}/onnx").encode
  if kind == "ExportedModel":
    from bertlib.export.exported_model import ExportedModel
    model = ExportedModel(f"{folder}/exported")
    return lambda texts: model(text=texts)["vectors"]
  import run_embeddings
  return run_embeddings.Predictor(folder).encode

load_again = before != "it uses the model"
if before == "it uses the model":
  use = load()
  use(texts)
elif before == "it computes":
  load()
  import tensorflow as tf
  tf.linalg.matmul(tf.ones([512, 768]), tf.ones([768, 3072]))
elif before == "it imports the program":
  import run_embeddings
child = os.fork()
if child:
  sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
status = 1
try:
  if load_again:
    use = load()
  print(json.dumps(np.sum(use(texts), 0).tolist()))
  status = 0
except InputError as error:
  print(error)
  status = 3
finally:
  sys.stdout.flush()
  os._exit(status)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A trained model, its SavedModel in `exported`, its ONNX in `onnx`."""
  folder = tmp_path_factory.mktemp("forks") / "model"
  wrong_input_world.write_trained(str(folder), DESCRIPTION, {}, SIZES)
  for name, flags in {"exported": [], "onnx": ["--format=onnx"]}.items():
    commands.succeed(
      "export_model.py",
      f"--model_dir={folder}",
      f"--export_dir={folder / name}",
      *flags,
    )
  return folder


def in_fork(folder, kind, before):
  """Status and output of a forked process, whose parent was used `before`."""
  process = subprocess.Popen(
    [sys.executable, "-c", PROGRAM, folder, kind, before, json.dumps(TEXTS)],
    env=os.environ | {"PYTHONPATH": commands.ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  try:
    output, _ = process.communicate(timeout=300)
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("hangs")
  return process.returncode, output


@pytest.mark.parametrize(
  ("kind", "before"),
  [("Predictor", "it computes"), ("ExportedModel", "it uses the model")],
)
def test_a_fork_of_a_process_that_computed_is_refused(folder, kind, before):
  status, output = in_fork(folder, kind, before)
  assert status == 3
  assert "TensorFlow has computed before this process was forked" in output
  assert "gunicorn without --preload" in output
  assert output.count("\n") == 1


@pytest.fixture(scope="module")
def alone(folder):
  """Output of a Predictor in the fork of a process that only imports."""
  status, output = in_fork(folder, "Predictor", "it imports the program")
  assert status == 0
  return output


@pytest.mark.parametrize(
  ("kind", "before"),
  [
    ("ExportedModel", "it imports the program"),
    ("OnnxModel", "it uses the model"),
  ],
)
def test_a_model_works_in_a_fork(folder, alone, kind, before):
  status, output = in_fork(folder, kind, before)
  assert status == 0
  np.testing.assert_allclose(json.loads(output), json.loads(alone), atol=1e-4)
