"""Tests of the inputs of run_squad.py."""

import types

import pytest
import tiny_squad

from bertlib.data import squad_files
from bertlib.settings import option
from bertlib.settings.squad import SquadSettings
from bertlib.training import squad_inputs

pytestmark = pytest.mark.unit


def test_predicted_and_evaluated_questions_are_of_one_reading(
  tmp_path, monkeypatch
):
  tiny_squad.write_data(tmp_path)
  path = tmp_path / "v1.json"
  read_questions = squad_files.read_questions

  def read_and_remove(name):
    questions = read_questions(name)
    path.unlink()
    return questions

  monkeypatch.setattr(squad_files, "read_questions", read_and_remove)
  run = types.SimpleNamespace(
    settings=option.make(
      SquadSettings, do_predict=True, do_eval=True, predict_file=str(path)
    ),
    selection=types.SimpleNamespace(eval_steps=0),
    config=tiny_squad.CONFIG,
  )
  data = squad_inputs.read_data(run)
  assert [example.qas_id for example in data.predict] == [
    question.id for question in data.questions
  ]
