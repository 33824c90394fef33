"""Tests of the commands that predict with the model of a run."""

import ast
import shlex
import types

import pytest

from bertlib.checkpoints import task_record
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.reporting import run_report

pytestmark = pytest.mark.unit

SETTINGS = [
  "run_classifier",
  "run_squad",
  "run_ner",
  "run_embeddings",
  "run_pretraining",
]


def split(command):
  """The words of a command; unlike `shlex`, a shell joins its lines."""
  return shlex.split(command.replace(" \\\n", " "))


@pytest.mark.parametrize("script", SETTINGS)
def test_the_command_needs_the_folder_and_its_input(script, tmp_path):
  folder = tmp_path / "a model's folder; $HOME"
  command = run_report.predict_command(task_record.find(script), str(folder))
  python, file, *flags = split(command)
  assert (python, file) == ("python", f"{script}.py")
  named = {flag.partition("=")[0] for flag in flags}
  assert named == {"--do_predict", "--predict_file", "--output_dir"}
  assert f"--output_dir={folder}" in flags


@pytest.mark.parametrize("script", sorted(set(SETTINGS) - {"run_pretraining"}))
def test_python_code_is_valid(script):
  folder = 'a "model\'s" folder\\'
  code = run_report.predict_code(task_record.find(script), folder, {})
  assert folder in [
    node.value
    for node in ast.walk(ast.parse(code))
    if isinstance(node, ast.Constant)
  ]


@pytest.mark.parametrize(
  ("description", "shape"),
  [
    ({"kind": "classification"}, str),
    ({"kind": "regression", "has_pairs": True}, tuple),
    ({"kind": "multiple_choice", "labels": ["0", "1"]}, list),
  ],
)
def test_python_code_has_texts_of_the_task(description, shape):
  code = run_report.predict_code(
    task_record.find("run_classifier"), "m", description
  )
  (call,) = (
    node
    for node in ast.walk(ast.parse(code))
    if getattr(getattr(node, "func", None), "attr", "") == "predict"
  )
  (text,) = ast.literal_eval(call.args[0])
  assert isinstance(text, shape)


def test_a_record_without_an_example_has_no_commands():
  task = types.SimpleNamespace(record=TaskRecord("a_script"))
  run = types.SimpleNamespace(task=task)
  assert run_report.predict_commands(run) == []
