"""Tests of what a first run leaves and logs."""

import io
import json
import shutil
import sys

import commands
import numpy as np
import pytest
import run_outputs
import wrong_input_world

import run_classifier
import run_pretraining
from bertlib.checkpoints import checkpoint_files
from bertlib.compute import precision
from bertlib.io import folder_lock, result_files
from bertlib.reporting import run_report
from bertlib.tasks.ner import ner_report
from bertlib.tasks.squad import squad_decoding, squad_files, squad_report
from bertlib.training import loop

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def classify(world):
  """Runs the classifier on `world`, in this process."""
  given = (*wrong_input_world.COMMANDS["run_classifier"], "--nodo_train")
  with commands.in_process(run_classifier) as main:

    def run(output_dir, *more):
      values = {"world": world, "out": output_dir}
      main(*(text.format(**values) for text in given), *more)

    yield run


@pytest.fixture(scope="module")
def trained(world, classify):
  """The folder of a run of three steps, with --precision=auto.

  Its rate is 0, so that it learns nothing.
  """
  folder = world / "first_run"
  actions = "--do_train", "--do_eval", "--do_predict", "--learning_rate=0"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(precision, "fastest_dtype", lambda measures: "bfloat16")
    classify(folder, *actions, "--precision=auto", "--num_train_epochs=1.5")
  return folder


def check_precision(entries):
  assert entries["precision"] == "bfloat16"


def test_what_auto_chose_is_recorded(trained):
  check_precision(run_outputs.read_json(trained / "model.json"))
  check_precision(run_outputs.read_json(trained / "run.json")["training"])
  assert "auto: bfloat16" in (trained / "report.html").read_text()


def test_later_runs_take_the_recorded_format(trained, classify, monkeypatch):
  before = (trained / "test_results.tsv").read_text()
  monkeypatch.delattr(precision, "fastest_dtype")  # not measured again
  classify(trained, "--do_predict", "--precision=auto")
  assert (trained / "test_results.tsv").read_text() == before
  check_precision(run_outputs.read_json(trained / "run.json")["prediction"])


def test_evaluation_leaves_the_records_of_a_training_run(trained, classify):
  records = trained / "eval.tf_record"
  before = records.read_bytes()
  with folder_lock.lock_folder(str(trained)):
    classify(trained, "--do_eval", "--max_seq_length=5")
  assert records.read_bytes() == before
  results = result_files.read_results(str(trained / "eval_results.txt"))
  assert np.sum(results["confusion_matrix"]) == 4


def test_an_evaluation_goes_on_without_a_checkpoint_that_is_removed(
  trained, tmp_path, classify, monkeypatch
):
  folder = shutil.copytree(trained, tmp_path / "pruned")
  last = list(folder.glob("model.ckpt-3.*"))
  for path in last:
    shutil.copy(path, folder / path.name.replace("-3.", "-2."))
  evaluate = loop.evaluate

  def remove():
    checkpoint_files.write_state_file(str(folder), "model.ckpt-2")
    for path in last:
      path.unlink(missing_ok=True)

  def remove_and_evaluate(*arguments):
    remove()
    return evaluate(*arguments)

  monkeypatch.setattr(loop, "evaluate", remove_and_evaluate)
  (folder / "eval_results.txt").unlink()
  shutil.rmtree(folder / "dev")
  classify(folder, "--do_eval", "--do_predict")
  results = result_files.read_results(str(folder / "eval_results.txt"))
  assert results["eval_loss"] > 0
  ((step, _),) = run_report.read_scalars(str(folder / "dev"))["accuracy"]
  assert step == 3  # as in the copy
  assert "ended" in run_outputs.read_json(folder / "run.json")["evaluation"]


def test_a_dev_score_has_one_name_and_one_folder(trained):
  results = result_files.read_results(str(trained / "eval_results.txt"))
  scores = run_report.read_scalars(str(trained / "dev"))
  assert set(scores) == {"accuracy", "f1", "loss", "matthews"}
  ((step, accuracy),) = scores["accuracy"]
  assert (step, accuracy) == (3, pytest.approx(results["eval_accuracy"]))
  assert scores["loss"][0][1] == pytest.approx(results["eval_loss"], rel=1e-6)
  assert not (trained / "eval").exists()


def test_predictions_of_other_texts_have_files_of_their_own(
  trained, classify, monkeypatch, capsys
):
  before = {
    path: path.read_bytes()
    for path in (*trained.glob("test_results.*"), trained / "predict.tf_record")
  }
  assert len(before) == 3
  stdin = io.TextIOWrapper(io.BytesIO(b"a bad film\ngood\n"))
  monkeypatch.setattr(sys, "stdin", stdin)
  classify(trained, "--do_predict", "--predict_file=-")
  assert before == {path: path.read_bytes() for path in before}
  lines = (trained / "stdin_predictions.jsonl").read_text().splitlines()
  shown = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
  for line, (label, probability, _) in zip(map(json.loads, lines), shown):
    assert line["label"] == label
    assert f"{line['probabilities'][label]:.3f}" == probability
  assert len(lines) == len(shown) == 2
  assert (trained / "stdin_predictions.tsv").exists()
  assert (trained / "predict_stdin.tf_record").exists()


def test_a_model_with_one_answer_is_in_log_and_report(
  trained, classify, caplog
):
  classify(trained, "--do_eval")
  (text,) = (one for one in caplog.messages if "4 predictions are" in one)
  text = text.replace("'", "&#x27;")
  assert text in (trained / "report.html").read_text()


@pytest.mark.unit
def test_no_entity_and_no_answer_are_one_answer():
  tagged = [["O", "O"], ["B-PER", "O"], ["O"]]
  assert ner_report.tag_texts(tagged) == ["no entity", "B-PER O", "no entity"]
  answers = squad_decoding.Answers({"1": "", "2": ""}, {}, {}, {})
  question = squad_files.Question("1", "?", "", (), None)
  predicted, gold = squad_report.answers_to_compare(answers, [question])
  assert predicted == ["no answer"] * 2
  assert gold == ["no answer"]


@pytest.mark.unit
@pytest.mark.parametrize(
  ("num_records", "max_steps", "full_batches", "plan"),
  [
    (61, None, False, (8, 1)),
    (8000, None, False, (100, 1)),
    (61, 100, False, (100, 14)),
    (61, 2, False, (2, 1)),
    (61, None, True, (8, 2)),
  ],
)
def test_records_are_evaluated_once_unless_steps_are_given(
  num_records, max_steps, full_batches, plan
):
  found = run_pretraining.plan_evaluation(
    num_records, 8, max_steps, full_batches
  )
  assert found == plan
