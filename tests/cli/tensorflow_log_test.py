"""Tests of hiding the log of TensorFlow."""

import os
import re
import subprocess
import sys
from importlib import metadata

import commands
import pytest
from parametrize import parametrize

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys
from bertlib.cli import tensorflow_log
with tensorflow_log.stderr_on_failure():
  os.write(2, b"held back\\n")
  {last}
os.write(2, b"after\\n")
"""
LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def run(last):
  return commands.run_code(SCRIPT.format(last=last))


@parametrize(
  "last, shown",
  ("pass", ["after"]),
  ("raise ImportError('no such module')", ["held back", "no such module"]),
  ("sys.exit('ends here')", ["held back", "ends here"]),
  ("os.abort()", ["held back"]),  # as TensorFlow does on old processors
)
def test_captured_output_is_printed_if_the_block_fails(last, shown):
  done = run(last)
  lines = done.stderr.splitlines()
  assert (done.returncode == 0) == (last == "pass")
  assert ("held back" in lines) == (last != "pass")
  assert all(text in done.stderr for text in shown)


def test_output_larger_than_a_pipe_buffer_is_captured():
  assert run("os.write(2, b'x' * 10**6); os.abort()").stderr.count("x") >= 10**6


def test_closed_stderr_is_not_an_error():
  script = "from bertlib.cli import tensorflow_log\n"
  script += "with tensorflow_log.stderr_on_failure():\n"
  done = commands.run_code(
    script + "  print('done')", stderr=None, preexec_fn=lambda: os.close(2)
  )
  assert (done.returncode, done.stdout) == (0, "done\n")


def shown(*arguments):
  """Lines on standard error that are not of our log."""
  environment = {k: v for k, v in os.environ.items() if k != LEVEL}
  done = subprocess.run(
    [sys.executable, *map(str, arguments)],
    capture_output=True,
    cwd=commands.ROOT,
    env=environment | {"PYTHONPATH": commands.ROOT},
    text=True,
    check=False,
  )
  lines = done.stderr.splitlines()
  assert done.returncode == 0, done.stderr
  return [line for line in lines if not re.match(r"\d\d:\d\d:\d\d ", line)]


# `run_classifier_test.py` checks the log of a training.
def test_commands_show_no_log_of_tensorflow(world, tmp_path):
  (tmp_path / "words.txt").write_text("naples\n")
  lines = shown(
    "create_vocab.py",
    f"--vocab_file={world}/vocab.txt",
    f"--bert_config_file={world}/bert_config.json",
    f"--init_checkpoint={world}/model.ckpt",
    f"--add_words={tmp_path}/words.txt",
    f"--output_checkpoint={tmp_path}/model.ckpt",
    f"--output_file={tmp_path}/vocab.txt",
    "--grow",
  )
  assert lines == []


IMPORTED = """
import sys
from bertlib.cli import tensorflow_log
{prepare}
import tensorflow as tf
tf.keras.layers
print([name for name in ("keras", "tf_keras") if name in sys.modules])
"""


@pytest.mark.skipif(
  metadata.version("tensorflow").startswith("2.15."),
  reason="TensorFlow 2.15 has no Keras 3",
)
@parametrize(
  "prepare, imported",
  ("tensorflow_log.select_keras_2()", ["tf_keras"]),
  ("tensorflow_log.hide_information(keras_2=True)", ["tf_keras"]),
  ("tensorflow_log.hide_information()", ["keras"]),
)
def test_keras_3_is_not_imported_beside_estimator(prepare, imported):
  done = commands.run_code(IMPORTED.format(prepare=prepare))
  assert done.stdout == f"{imported}\n", done.stderr


PROGRAM = """
{before}
import run_classifier
import sys
with run_classifier.Predictor(sys.argv[1]) as predictor:
  print(predictor.predict(["the cat sat"])[0].label)
"""


@pytest.mark.parametrize(
  ("before", "is_shown"),
  [("", False), (f"import os; os.environ[{LEVEL!r}] = '0'", True)],
)
def test_programs_show_the_log_only_if_asked(world, before, is_shown):
  lines = shown("-c", PROGRAM.format(before=before), f"{world}/trained")
  assert bool(lines) == is_shown
