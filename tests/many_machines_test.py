"""Tests of the page on many machines: its programs, in environments of engines.

Those have no TensorFlow. `make test-all` makes that of Beam. The others:

    python3.12 -m venv /tmp/spark
    /tmp/spark/bin/pip install onnxruntime 'pyspark[sql]==4.3.0'
    python3.12 -m venv /tmp/ray
    /tmp/ray/bin/pip install onnxruntime 'ray[data]==2.60.0'
    SPARK_PYTHON=/tmp/spark/bin/python RAY_PYTHON=/tmp/ray/bin/python \
      python -m pytest -m slow tests/many_machines_test.py
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import commands
import numpy as np
import pandas as pd
import predict_test
import pytest
import wheel_test

from bertlib.export import OnnxModel

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = pytest.mark.process

PAGE = pathlib.Path(commands.ROOT, "docs", "how_to", "many_machines.md")
MODEL = "output/exported/demo_onnx"
TEXTS = ["the cat sat", None, "", "is it good? (bad, good)", "home"]

# A table whose column of texts is a dictionary, with nulls.
WRITE = """
import json, sys, pyarrow, pyarrow.parquet
texts = pyarrow.array(json.loads(sys.argv[2])).dictionary_encode()
table = pyarrow.table({"id": range(len(texts)), "text": texts})
pyarrow.parquet.write_table(table, sys.argv[1])
"""
READ = """
import json, sys, pyarrow.parquet
files = map(pyarrow.parquet.ParquetFile, sys.argv[1:])
print(json.dumps([row for file in files for row in file.read().to_pylist()]))
"""
# Imported when a Python starts: notes each load of a model and each batch, and
# once kills a process that comes to its batch of the number in `kill`.
HOOK = """
import os, signal, onnxruntime

class Session(onnxruntime.InferenceSession):
  def __init__(self, *arguments, **options):
    super().__init__(*arguments, **options)
    self.batches = 0
    self.note("load")

  def run(self, *arguments):
    self.batches += 1
    self.note("batch")
    kill = os.environ["NOTES"] + "/kill"
    if os.path.exists(kill) and int(open(kill).read()) == self.batches:
      os.remove(kill)
      os.kill(os.getpid(), signal.SIGKILL)
    return super().run(*arguments)

  def note(self, name):
    with open(os.environ["NOTES"] + "/notes", "a") as file:
      file.write(name + " ")

onnxruntime.InferenceSession = Session
"""


def blocks(language):
  text = PAGE.read_text(encoding="utf-8")
  return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


ENGINES = "spark", "ray", "beam"
WORKER, *programs = blocks("python")
MAKE_ZIP, _, *commands_of_engines = blocks("shell")
PROGRAMS = dict(zip(ENGINES, programs))
COMMANDS = dict(zip(ENGINES, commands_of_engines))


def run(*command, python=sys.executable, cwd=commands.ROOT, **more):
  """Runs a command with `python` as that; returns what it printed."""
  path = f"{os.path.dirname(python)}:{os.environ['PATH']}"
  done = subprocess.run(
    [*map(str, command)],
    cwd=cwd,
    env=os.environ | {"PATH": path} | more,
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return done.stdout


def python_of(engine):
  """Python of the environment of an engine."""
  name = f"{engine.upper()}_PYTHON"
  if name not in os.environ:
    pytest.skip(f"{name} is not set: see the top of this file")
  has_tensorflow = (
    "import importlib.util as u; print(u.find_spec('tensorflow'))"
  )
  assert run(os.environ[name], "-c", has_tensorflow).strip() == "None"
  return os.environ[name]


@pytest.fixture(scope="module")
def made(once, tmp_path_factory):
  """A folder with a model and with the programs, where the page has them."""
  folder = tmp_path_factory.mktemp("page")
  model = predict_test.exported(once, "single", folder / "model")
  shutil.copytree(model / "exported", folder / MODEL)
  run("bash", "-c", MAKE_ZIP.replace("output", str(folder / "output")))
  (folder / "output" / "onnx_worker.py").write_text(WORKER)
  for engine, code in PROGRAMS.items():
    (folder / "output" / f"{engine}_predict.py").write_text(code)
  return folder


@pytest.fixture
def predict(made, tmp_path):
  """Runs the command of an engine; returns loads, batches and rows."""
  (tmp_path / "hook").mkdir()
  (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
  shutil.copytree(made / "output", tmp_path / "output")
  output = tmp_path / "output"

  def predict(engine, texts, kill=None):
    python = python_of(engine)
    if kill:
      (tmp_path / "kill").write_text(str(kill))
    table = output / "texts.parquet"
    run(python, "-c", WRITE, table, json.dumps(texts))
    command = COMMANDS[engine].replace("PYTHONPATH=", "PYTHONPATH=hook:")
    environment = {"NOTES": str(tmp_path), "PYTHONPATH": str(tmp_path / "hook")}
    run("bash", "-c", command, python=python, cwd=tmp_path, **environment)
    assert not (tmp_path / "kill").exists()
    files = [*output.glob("labels/*.parquet"), *output.glob("labels-*")]
    notes = (tmp_path / "notes").read_text().split()
    rows = json.loads(run(python, "-c", READ, *files))
    return collections.Counter(notes), rows

  return predict


def check(rows, texts, folder):
  """Asserts that the rows are those of `texts`, each once, in any order."""
  known = [text for text in texts if text is not None]
  found = iter(OnnxModel(str(folder / MODEL)).predict(known))
  rows = sorted(rows, key=lambda row: row["id"])
  assert [row["id"] for row in rows] == [*range(len(texts))]
  for row, text in zip(rows, texts):
    expected = next(found) if text is not None else None
    assert row["label"] == (expected and expected.label)
    probability = expected and max(expected.probabilities.values())
    assert row["probability"] == pytest.approx(probability, abs=1e-5)


# The programs have more partitions than rows.
@pytest.mark.slow
@pytest.mark.parametrize("kill", [None, 2])
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_workers_load_once_and_rows_survive_a_killed_one(
  engine, kill, predict, made
):
  notes, rows = predict(engine, TEXTS * 8, kill)
  check(rows, TEXTS * 8, made)
  workers = {"spark": 2, "ray": os.cpu_count()}[engine]
  assert bool(kill) < notes["load"] <= workers + bool(kill)
  assert notes["batch"] >= 32 + bool(kill)


def test_workers_of_beam_load_once(predict, made):
  notes, rows = predict("beam", TEXTS * 500)
  check(rows, TEXTS * 500, made)
  assert notes["load"] <= 2 < notes["batch"]


@pytest.mark.slow
def test_a_killed_worker_of_beam_ends_the_run(predict, tmp_path):
  with pytest.raises(AssertionError, match="Channel closed prematurely"):
    predict("beam", TEXTS, kill=1)
  assert [*tmp_path.glob("output/labels*")] == []


def test_every_form_of_no_text_is_answered_by_none(made):
  names = {}
  exec(WORKER, names)
  forms = [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT]
  texts = pd.Series([*forms, "", np.str_("home"), "home"], dtype=object)
  for values in (texts, texts.to_numpy(), list(texts)):
    columns = names["predict"](str(made / MODEL), values)
    for column in columns.values():
      assert column[: len(forms)] == [None] * len(forms)
      assert None not in column[len(forms) :]
      assert column[-1] == column[-2]
  none = names["predict"](str(made / MODEL), forms[:1])
  assert none == {"label": [None], "probability": [None]}


def test_workers_import_from_the_wheel(made, once, tmp_path):
  python = python_of("beam")
  folder = once.copy("wheel", wheel_test.build, tmp_path / "wheel")
  target = tmp_path / "target"
  wheel_test.install(
    python, *folder.glob("*.whl"), "--no-deps", f"--target={target}"
  )
  worker = WORKER.replace("from bertlib", "from bert.bertlib")
  (target / "onnx_worker.py").write_text(worker)
  program = (
    "import onnx_worker, sys; print(onnx_worker.predict(sys.argv[1], ['']))"
  )
  printed = run(
    *(python, "-c", program, made / MODEL), cwd=tmp_path, PYTHONPATH=str(target)
  )
  assert printed.startswith("{'label': ['")
