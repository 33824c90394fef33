"""Tests of the inputs of run_squad.py."""

import json
import types

import pytest
import tiny_squad

from bertlib.cli import option
from bertlib.tasks.squad import squad_inputs
from bertlib.tasks.squad.settings import SquadSettings

pytestmark = pytest.mark.unit


def test_faults_of_the_data_are_counted(tmp_path, caplog):
  data = tiny_squad.make_data(False)
  (tmp_path / "dev.json").write_text(json.dumps(data))
  first, second = (data["data"][0]["paragraphs"][i]["qas"] for i in (0, 1))
  first[0]["question"] = first[1]["question"]  # but has another answer
  second[0]["question"] = " "
  (tmp_path / "train.json").write_text(json.dumps(data))
  paths = {"train_file": str(tmp_path / "train.json")}
  paths["predict_file"] = str(tmp_path / "dev.json")
  actions = dict.fromkeys(("do_train", "do_predict", "do_eval"), True)
  settings = option.make(SquadSettings, **actions, **paths)
  run = types.SimpleNamespace(settings=settings, flags=settings.flags)
  run.selection = types.SimpleNamespace(eval_steps=0)
  run.config = tiny_squad.CONFIG
  squad_inputs.read_data(run)
  found = [message.partition(", the first")[0] for message in caplog.messages]
  assert found == [
    "the training set: examples with an empty text: 1 of 12",
    "the training set: texts with different labels: 1",
    "the dev set: examples with a text of the training set: 10 of 12",
  ]
