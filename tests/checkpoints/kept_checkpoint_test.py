"""Tests of reading the checkpoints of a folder in which a training saves."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import commands
import numpy as np
import pytest
import run_outputs
from parametrize import parametrize

from bertlib.checkpoints import checkpoint_files
from bertlib.io import folder_lock

pytestmark = pytest.mark.train


@pytest.fixture
def folder(world, tmp_path):
  """A trained folder with the checkpoint of step 1."""
  folder = shutil.copytree(world / "trained", tmp_path / "model")
  return folder


# Saves a checkpoint every twenty milliseconds, and keeps one. Arguments: its
# folder, and another one for the first checkpoint.
TRAINING = """
import itertools, os, shutil, sys, time
folder, first = sys.argv[1:]
parts = ".data-00000-of-00001", ".index"
for part in parts:
  shutil.copyfile(f"{folder}/model.ckpt-1{part}", f"{first}/first{part}")
for step in itertools.count(2):
  for part in parts:
    shutil.copyfile(f"{first}/first{part}", f"{folder}/state")
    os.replace(f"{folder}/state", f"{folder}/model.ckpt-{step}{part}")
  with open(f"{folder}/state", "w") as file:
    file.write(f'model_checkpoint_path: "model.ckpt-{step}"')
  os.replace(f"{folder}/state", f"{folder}/checkpoint")
  for part in reversed(parts):
    os.remove(f"{folder}/model.ckpt-{step - 1}{part}")
  if step == 3:
    print("trains", flush=True)
  time.sleep(0.02)
"""


@contextlib.contextmanager
def training(folder):
  """A training saves in the folder within the block."""
  process = subprocess.Popen(
    [sys.executable, "-c", TRAINING, folder, folder.parent],
    stdout=subprocess.PIPE,
  )
  try:
    assert process.stdout.readline()
    yield
    assert process.poll() is None
  finally:
    process.kill()
    process.communicate()


def hidden(folder):
  return list(folder.glob(".bert-tmp-*-model.ckpt-*"))


COMMANDS = {
  "evaluation": "run_classifier.py --do_eval --output_dir={folder}"
  " --data_dir={world}",
  "prediction elsewhere": "run_classifier.py --do_predict --output_dir={out}"
  " --init_checkpoint={folder} --predict_file={world}/lines.txt",
  "features": "extract_features.py --init_checkpoint={folder} --layers=-1"
  " --input_file={world}/lines.txt --output_file={out}.jsonl",
  "SavedModel": "export_model.py --model_dir={folder} --export_dir={out}",
}


@parametrize("use", *COMMANDS)
def test_a_command_reads_beside_a_training(use, folder, world, tmp_path):
  line = COMMANDS[use].format(folder=folder, world=world, out=tmp_path / "out")
  if use == "SavedModel":  # of ids alone, which takes a fifth of the time
    (folder / "vocab.txt").unlink()
  with training(folder):
    done = commands.succeed(*line.split())
  # A command shows no lines of TensorFlow, which names what it reads.
  of_tensorflow = "(?m)^.*(Restoring parameters|'checkpoint_path' summary).*$"
  log = re.sub(of_tensorflow, "", done.stderr)
  assert not re.search(r"bert-tmp\S*model\.ckpt", log)
  assert not hidden(folder)


def test_an_error_names_the_checkpoint_itself(folder, tmp_path):
  (data,) = folder.glob("model.ckpt-1.data-*")
  content = bytearray(data.read_bytes())
  content[-3] ^= 1
  data.write_bytes(content)
  files = f"--input_file={folder}/vocab.txt", f"--output_file={tmp_path}/out"
  found = commands.fail(
    "extract_features.py", f"--init_checkpoint={folder}", *files
  )
  assert f"{data}: is corrupt" in found
  assert ".bert-tmp" not in found
  assert not hidden(folder)


@parametrize("links", True, False)
def test_weights_are_those_of_a_checkpoint_now_gone(links, folder, monkeypatch):
  if not links:
    monkeypatch.setattr(os, "link", refuse_to_link, raising=False)
  checkpoint = checkpoint_files.last_checkpoint(str(folder))
  before = run_outputs.read_variables(checkpoint)
  with checkpoint_files.keeping():
    checkpoint_files.check(checkpoint)
    for path in folder.glob("model.ckpt-1.*"):
      path.unlink()
    found = checkpoint_files.Checkpoint(checkpoint)
    assert found.keys() == before.keys()
    for name, value in before.items():
      np.testing.assert_array_equal(found[name], value)
    assert hidden(folder)
  assert not checkpoint_files.exists(checkpoint)
  assert not hidden(folder)


def refuse_to_link(*paths):
  raise OSError(95, "Operation not supported")


def test_links_of_a_killed_process_go_with_the_next_training(folder):
  checkpoint = checkpoint_files.last_checkpoint(str(folder))
  code = (
    "import os, sys; from bertlib.checkpoints import checkpoint_files as c\n"
    "with c.keeping(): c.check(sys.argv[1]); os._exit(9)"
  )
  assert commands.run_code(code, checkpoint).returncode == 9
  assert hidden(folder)
  with folder_lock.lock_folder(str(folder)):
    assert not hidden(folder)


def test_published_models_are_read_where_they_are(world):
  with checkpoint_files.keeping():
    checkpoint = str(world / "model.ckpt")
    checkpoint_files.check(checkpoint)
    assert checkpoint_files.kept(checkpoint) == checkpoint
