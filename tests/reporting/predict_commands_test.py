"""Tests of the commands that predict with the model of a run."""

import ast
import shlex
import types

import pytest

from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli import option
from bertlib.reporting import predict_commands
from bertlib.settings.classifier import ClassifierSettings
from bertlib.settings.embeddings import EmbeddingSettings
from bertlib.settings.ner import NerSettings
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.settings.squad import SquadSettings
from bertlib.tasks import records

pytestmark = pytest.mark.unit

SETTINGS = {
  "run_classifier": ClassifierSettings,
  "run_squad": SquadSettings,
  "run_ner": NerSettings,
  "run_embeddings": EmbeddingSettings,
  "run_pretraining": PretrainingSettings,
}


def run_of(script, folder, **flags):
  """A run with these flags, whose folder has vocabulary and config."""
  folder.mkdir(exist_ok=True)
  for name in ("vocab.txt", "bert_config.json"):
    (folder / name).write_text("")
  settings = option.make(SETTINGS[script], output_dir=str(folder), **flags)
  object.__setattr__(
    settings.receipt, "times_given", dict.fromkeys([*flags, "output_dir"], 1)
  )
  return types.SimpleNamespace(
    task=types.SimpleNamespace(record=records.find(script)),
    settings=settings,
    output_dir=str(folder),
    path=lambda name: str(folder / name),
  )


def split(command):
  """The words of a command; unlike `shlex`, a shell joins its lines."""
  return shlex.split(command.replace(" \\\n", " "))


@pytest.mark.parametrize("script", SETTINGS)
def test_the_shell_reads_the_command_as_it_was_meant(script, tmp_path):
  folder = tmp_path / "a model's folder; $HOME"
  run = run_of(script, folder, max_seq_length=64, learning_rate=0.5)
  python, file, *flags = split(predict_commands.command_line(run))
  assert (python, file) == ("python", f"{script}.py")
  assert "--do_predict" in flags and f"--output_dir={folder}" in flags
  assert ("--max_seq_length=64" in flags) == (script != "run_embeddings")
  own = {name for name, _ in option.declarations(SETTINGS[script])}
  named = {flag.partition("=")[0].removeprefix("--") for flag in flags}
  assert named <= own and "learning_rate" not in named
  if script != "run_embeddings":
    assert f"--vocab_file={folder}/vocab.txt" in flags


def test_flags_of_the_data_are_repeated(tmp_path):
  run = run_of(
    "run_classifier",
    tmp_path,
    task_name="tsv",
    labels=["a b", "c"],
    do_lower_case=False,
    label_delimiter="|",
  )
  flags = split(predict_commands.command_line(run))
  for flag in ("task_name=tsv", "labels=a b,c", "label_delimiter=|"):
    assert f"--{flag}" in flags
  assert "--nodo_lower_case" in flags


@pytest.mark.parametrize("script", sorted(set(SETTINGS) - {"run_pretraining"}))
def test_python_code_is_valid(script):
  folder = 'a "model\'s" folder\\'
  code = predict_commands.python_code(records.find(script), folder, {})
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
    ({"kind": "multiple_choice", "has_pairs": True}, list),
  ],
)
def test_python_code_has_texts_of_the_task(description, shape):
  code = predict_commands.python_code(
    records.find("run_classifier"), "m", description
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
  assert predict_commands.blocks(run) == []
