"""Tests of `predict.py` beside --do_predict of the scripts, and of its runs."""

import functools
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import commands
import numpy as np
import pytest
import signatures_test
from onnx_model_test import assert_equal
from reference_data import read_jsonl
from refused import refusal
from signatures_test import TEXTS

import export_model
import predict
from bertlib.export import OnnxModel
from bertlib.io import folder_lock

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = pytest.mark.train

MODELS = signatures_test.MODELS | {
  "pairs": signatures_test.MODELS["classification"] | {"has_pairs": True},
  "single": signatures_test.MODELS["classification"] | {"has_pairs": False},
  "table": signatures_test.MODELS["classification"] | {"text_a_column": "text"},
  "swag": signatures_test.MODELS["multiple_choice"]
  | {"task": "swag", "labels": ["0", "1", "2", "3"]},
  "race": signatures_test.MODELS["multiple_choice"]
  | {"task": "race", "labels": ["A", "B", "C", "D"]},
  "embeddings": signatures_test.MODELS["embeddings, mean"],
  "prompted": signatures_test.MODELS["ranking"] | {"query_prefix": "the cat "},
}
for name in ("squad_1", "squad_2"):
  # Exports always exclude padding from answers.
  MODELS[name] = MODELS[name] | {"mask_padding": True}

SINGLE = [text for text in TEXTS if "\t" not in text and text]
PAIRS = [f"{a}\t{b}" for a in SINGLE for b in SINGLE[:3]]
LINES = "".join(f"{text}\n" for text in SINGLE)
PAIR_LINES = "".join(f"{text}\n" for text in PAIRS)
TABLE = "id,text\n" + "".join(f'{n},"{t}"\n' for n, t in enumerate(SINGLE))
COLUMNS = "".join(f"{w} O\n" for w in ["the", "cat", "sat", "home", "."]) * 9
CONLL = f"-DOCSTART- O\n\n{COLUMNS}\nbad O\n\nhome O\n"
WORDS = [{"tokens": text.split() or ["a"]} for text in SINGLE]
MIXED = [*WORDS, *({"text": text} for text in SINGLE)]
JSON_LINES = "".join(json.dumps(line) + "\n" for line in MIXED)
SWAG = "sent1,sent2,ending0,ending1,ending2,ending3\n" + "".join(
  f"the cat ran {'home ' * n},it,is bad and good,is good {'ran ' * n},"
  "sat,and the dog sat home\n"
  for n in range(5)
)
RACE = json.dumps(
  {
    "article": "the cat sat . the dog ran home .",
    "questions": ["the cat _ home", "is it good ?"],
    "options": [["sat", "ran", "is good", "is"], ["the cat", "a", "b", "bad"]],
    "answers": ["A", "B"],
  }
)
CONTEXTS = [*SINGLE, "the cat sat . the dog ran home . " * 9]
QUESTIONS = [
  {"context": context, "qas": [{"id": f"{n}-{m}", "question": question}]}
  for n, context in enumerate(CONTEXTS)
  for m, question in enumerate(SINGLE[:2])
]
SQUAD = json.dumps({"data": [{"paragraphs": QUESTIONS}]})
MASKED = "the [MASK] sat\nthe cat ||| it [MASK] [MASK]\nthe cat sat home\n\na\n"

# Kind of model, file, its content, ending of the answers.
CASES = [
  ("pairs", "a.txt", PAIR_LINES, ".tsv"),
  ("single", "a.tsv", LINES, ".jsonl"),
  ("table", "a.csv", TABLE, ".tsv"),
  ("regression", "a.txt", PAIR_LINES, ".tsv"),
  ("multi_label", "a.txt", LINES, ".jsonl"),
  ("swag", "test.csv", SWAG, ".tsv"),
  ("race", "test/high/1.txt", RACE, ".jsonl"),
  ("ner", "a.conll", CONLL, ".conll"),
  ("ner", "a.txt", LINES, ".jsonl"),
  ("ner", "a.jsonl", JSON_LINES, ".jsonl"),
  ("squad_1", "a.json", SQUAD, ".json"),
  ("squad_2", "a.json", SQUAD, ".json"),
  ("embeddings", "a.txt", LINES, ".npy"),
  ("prompted", "a.tsv", PAIR_LINES, ".jsonl"),
  ("pretraining", "a.txt", MASKED, ".jsonl"),
]


def exported(once, kind, path):
  """Copies the folder of a kind of model; `exported` in it is its ONNX."""

  def make(folder):
    signatures_test.make_model(folder, **MODELS[kind])
    with commands.in_process(export_model) as main:
      folders = f"--model_dir={folder}", f"--export_dir={folder}/exported"
      main(*folders, "--format=onnx")

  return once.copy(f"exported_{kind}", make, path)


@pytest.fixture(scope="module")
def folder_of(once, tmp_path_factory):
  return functools.cache(
    lambda kind: exported(once, kind, tmp_path_factory.mktemp("model"))
  )


def write(folder, name, content):
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(content, encoding="utf-8")
  return path


def run(model, source, output, *flags, **options):
  return commands.succeed(
    "predict.py",
    f"--model={model}/exported",
    f"--input={source}",
    f"--output={output}",
    "--engine=onnxruntime",
    *flags,
    **options,
  )


def fail(model, source, output, *flags, **options):
  return commands.fail(
    "predict.py",
    f"--model={model}/exported",
    f"--input={source}",
    f"--output={output}",
    "--engine=onnxruntime",
    *flags,
    **options,
  )


def read(path):
  """The answers of a file, with numbers as numbers."""
  if path.suffix == ".npy":
    return np.load(path)
  if path.suffix == ".jsonl":
    lines = read_jsonl(path)
    for line in lines:  # of which float32 has seven digits
      if value := line.pop("pseudo_perplexity", None):
        line["log"] = float(np.log(value))
    return lines
  text = path.read_text(encoding="utf-8")
  if path.suffix == ".json":
    return json.loads(text)
  number = re.compile(r"-?\d+\.\d+(e-\d+)?")
  return [
    [float(x) if number.fullmatch(x) else x for x in row.split("\t")]
    for row in text.split("\n")
  ]


@pytest.mark.parametrize("kind, name, content, ending", CASES)
def test_answers_are_those_of_the_script(
  kind, name, content, ending, folder_of, tmp_path
):
  model, script = folder_of(kind), MODELS[kind]["script"]
  source = write(tmp_path, name, content)
  is_choice = kind in ("swag", "race")
  flags = [f"--predict_file={source}"]
  if is_choice:
    flags = [f"--data_dir={tmp_path}"]
  written = model / {
    "run_embeddings": "a_vectors",
    "run_squad": "predictions",
    "run_pretraining": "predictions",
  }.get(script, "test_results" if is_choice else "a_predictions")
  with commands.in_process(importlib.import_module(script)) as main:
    main("--do_predict", f"--output_dir={model}", *flags)
  output = tmp_path / f"answers{ending}"
  run(model, source, output)
  assert_equal(read(output), read(written.with_suffix(ending)))
  assert os.listdir(tmp_path).count(".answers" + ending + ".blocks") == 0


def test_the_best_answers_of_a_question_are_those_of_the_script(
  folder_of, tmp_path
):
  model, source = folder_of("squad_2"), write(tmp_path, "a.json", SQUAD)
  run(model, source, tmp_path / "a.jsonl")
  with commands.in_process(importlib.import_module("run_squad")) as main:
    main("--do_predict", f"--output_dir={model}", f"--predict_file={source}")
  lines = read(tmp_path / "a.jsonl")
  nbest = {line["id"]: line["nbest"] for line in lines}
  assert_equal(nbest, read(model / "nbest_predictions.json"))
  odds = {line["id"]: line["null_odds"] for line in lines}
  assert_equal(odds, read(model / "null_odds.json"))


def test_standard_input_and_output_have_the_same_lines(folder_of, tmp_path):
  model, source = folder_of("single"), write(tmp_path, "a.txt", LINES)
  run(model, source, tmp_path / "a.jsonl")
  done = run(model, "-", "-", input=LINES, own_process=True)
  assert done.stdout == (tmp_path / "a.jsonl").read_text(encoding="utf-8")
  assert "tensorflow" not in done.stderr.lower()


def test_the_log_has_the_form_of_all_commands_with_openvino(
  folder_of, tmp_path
):
  pytest.importorskip("openvino", reason="pip install -e .[test]")
  source, output = write(tmp_path, "a.txt", LINES), tmp_path / "a.jsonl"
  flag = "--engine=openvino"
  done = run(folder_of("single"), source, output, flag, own_process=True)
  lines = done.stderr.splitlines()
  assert lines and all(re.match(r"\d\d:\d\d:\d\d ", x) for x in lines), lines


# Blocks


MANY = "".join(f"the {'cat ' * (n % 7)}sat {n}\n" for n in range(50))

# A run that is killed at the given call of a function.
KILLED = """
import os, shutil, sys
import predict
from bertlib.cli import app

moment, number, *sys.argv = sys.argv[1:]
owner, name = {
  "between blocks": (predict.KeptBlocks, "write_next"),
  "joining": (shutil, "copyfileobj"),
  "renaming": (os, "replace"),
  "after the rename": (predict.KeptBlocks, "remove"),
  "removing": (os, "rmdir"),
}[moment]
function, calls = getattr(owner, name), []

def counted(*arguments):
  calls.append(arguments)
  if len(calls) == int(number):
    os.kill(os.getpid(), 9)
  return function(*arguments)

setattr(owner, name, counted)
predict.BLOCK_SIZE = 8
app.parse_flags(predict.PredictSettings)
app.run(predict.main)
"""


@pytest.fixture
def run_many(folder_of, tmp_path, monkeypatch):
  """Runs the command in blocks of eight rows."""
  write(tmp_path, "many.txt", MANY)
  monkeypatch.setattr(predict, "BLOCK_SIZE", 8)
  exported = folder_of("single") / "exported"
  with commands.in_process(predict) as main:

    def run_many(output, **changed):
      flags = {
        "model": exported,
        "input": tmp_path / "many.txt",
        "output": output,
        "engine": "onnxruntime",
      }
      main(*commands.as_flags(flags | changed))

    yield run_many


@pytest.fixture
def many(run_many, tmp_path):
  """Runs the command likewise; returns the bytes that it writes."""

  def many(output="answers.jsonl", **changed):
    run_many(tmp_path / output, **changed)
    return (tmp_path / output).read_bytes()

  return many


def kept_in(folder, output="answers.jsonl"):
  blocks = folder / f".{output}.blocks"
  return sorted(os.listdir(blocks)) if blocks.exists() else []


@pytest.fixture
def computed(monkeypatch):
  """The numbers of rows that runs have computed."""
  numbers = []
  run = OnnxModel.run

  def counting(self, rows, *more):
    numbers.append(sum(len(batch) for batch, _ in rows))
    return run(self, rows, *more)

  monkeypatch.setattr(OnnxModel, "run", counting, raising=False)
  return numbers


@pytest.mark.process
@pytest.mark.parametrize(
  "moment, call, num_kept",
  [
    ("between blocks", 4, 3),
    ("joining", 3, 7),
    ("renaming", 8, 7),
    ("after the rename", 1, 7),
    ("removing", 1, 0),
  ],
)
def test_a_killed_run_is_completed_with_the_same_bytes(
  moment, call, num_kept, many, computed, folder_of, tmp_path
):
  expected = many("whole.jsonl")
  computed.clear()
  flags = {
    "model": folder_of("single") / "exported",
    "input": tmp_path / "many.txt",
    "output": tmp_path / "answers.jsonl",
    "engine": "onnxruntime",
  }
  arguments = "predict.py", *commands.as_flags(flags)
  done = commands.run_code(KILLED, moment, call, *arguments)
  assert done.returncode == -signal.SIGKILL, done.stderr
  blocks = [n for n in kept_in(tmp_path) if not n.startswith(".bert-tmp")]
  assert len(blocks) == num_kept
  assert many() == expected
  assert sum(computed) == {0: 50, 3: 50 - 3 * 8, 7: 0}[num_kept]
  assert not kept_in(tmp_path)
  assert [*tmp_path.glob(".*")] == []


def test_only_the_block_of_an_edited_row_is_computed_again(
  many, computed, tmp_path, monkeypatch, log
):
  with monkeypatch.context() as patch:
    patch.setattr(predict, "join", lambda *unused: None)
    with pytest.raises(FileNotFoundError):
      many()
  assert len(kept_in(tmp_path)) == 7
  edited = MANY.replace("sat 20\n", "ran home 20\n")
  write(tmp_path, "many.txt", edited)
  computed.clear()
  found = many()
  assert computed == [8]
  assert [line for line in log if "computed again" in line] == [
    "block 3 is computed again: its rows, the model or the engine are others"
    " than before"
  ]
  assert found == many("whole.jsonl")


def test_a_bad_row_costs_no_other_block(many, computed, tmp_path):
  bad = MANY.replace("sat 20\n", "sat 20\tsecond\n")
  write(tmp_path, "many.txt", bad)
  message = refusal(many)
  assert message.startswith(f"{tmp_path}/many.txt, row 21: has a second text")
  assert not (tmp_path / "answers.jsonl").exists()
  assert len(kept_in(tmp_path)) == 2
  write(tmp_path, "many.txt", MANY)
  computed.clear()
  many()
  assert sum(computed) == 50 - 16


def test_bad_rows_are_skipped_and_listed(many, tmp_path):
  bad = MANY.replace("sat 20\n", "sat 20\tsecond\n")
  write(tmp_path, "many.txt", bad)
  lines = many(bad_rows="skip").splitlines()
  assert len(lines) == 49
  listed = (tmp_path / "many_bad_rows.txt").read_text()
  assert listed == (
    f"{tmp_path}/many.txt, row 21: has a second text, but the model is of"
    " single texts\n"
  )
  write(tmp_path, "many.txt", MANY)
  many()
  assert (tmp_path / "many_bad_rows.txt").read_text() == ""


def test_a_file_of_bad_rows_alone_is_refused_by_the_first(many, tmp_path):
  write(tmp_path, "many.txt", "a\tb\nc\td\n")
  assert refusal(many, bad_rows="skip") == (
    f"{tmp_path}/many.txt: has no rows to predict for; skipped: 2, the first:"
    f" {tmp_path}/many.txt, row 1: has a second text, but the model is of"
    " single texts"
  )


def test_a_row_without_second_text_is_named(folder_of, tmp_path):
  source = write(tmp_path, "a.txt", f"{PAIR_LINES}alone\n")
  message = fail(folder_of("pairs"), source, tmp_path / "a.jsonl")
  row = len(PAIRS) + 1
  assert f"row {row}: is one text, but the model is of pairs" in message


def test_a_full_disk_is_one_line_and_keeps_what_is_finished(
  folder_of, tmp_path
):
  source = write(tmp_path, "a.txt", "the cat sat\n" * 20000)
  output = tmp_path / "answers.jsonl"
  # A block is larger than half of the limit, the output larger than it.
  message = fail(folder_of("single"), source, output, largest_file=2_000_000)
  assert message.endswith(
    "answers.jsonl: File too large. Make room there or name another path; files"
    " that were complete before are unchanged"
  )
  assert not output.exists()
  assert len(kept_in(tmp_path)) == 3


@pytest.mark.process
def test_a_second_process_is_refused(folder_of, many, tmp_path):
  with folder_lock.lock_files([str(tmp_path / "answers.jsonl")]):
    message = refusal(many)
  assert "is writing to it. Wait for it to end" in message
  assert message.endswith("name another --output")


def test_an_input_that_changes_is_named_and_nothing_is_lost(
  many, computed, tmp_path, monkeypatch
):
  write_next = predict.KeptBlocks.write_next

  def change(self, lines):
    write_next(self, lines)
    with open(tmp_path / "many.txt", "a") as file:
      file.write("home\n")

  with monkeypatch.context() as patch:
    patch.setattr(predict.KeptBlocks, "write_next", change)
    message = refusal(many)
  assert "many.txt: has changed while it was read" in message
  assert not (tmp_path / "answers.jsonl").exists()
  num_kept = len(kept_in(tmp_path))
  computed.clear()
  many()
  assert len(computed) <= 8 - num_kept + 1


@pytest.mark.process
def test_a_closed_pipe_ends_in_silence(folder_of, tmp_path):
  source = write(tmp_path, "a.txt", "the cat sat\n" * 30000)
  flags = f"--model={folder_of('single')}/exported", f"--input={source}"
  command = ["predict.py", *flags, "--output=-", "--verbosity=-1"]
  with subprocess.Popen(
    [sys.executable, os.path.join(commands.ROOT, command[0]), *command[1:]],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    assert process.stdout.readline().startswith(b'{"guid": "text-1"')
    process.stdout.close()
    assert process.stderr.read() == b""
  assert process.returncode == 0


def test_blocks_are_written_to_a_pipe_when_they_are_computed(
  many, run_many, tmp_path, monkeypatch
):
  expected, path = many("whole.jsonl"), tmp_path / "pipe"
  os.mkfifo(path)
  received = []

  def read_all():
    with open(path, "rb", buffering=0) as pipe:
      while part := pipe.read(65536):
        received.append(part)

  thread = threading.Thread(target=read_all, daemon=True)
  thread.start()
  run_many(path)
  thread.join(timeout=60)
  assert b"".join(received) == expected


def test_memory_does_not_grow_with_the_rows(folder_of, tmp_path):
  code = (
    "import resource, sys, predict\nfrom bertlib.cli import app\n"
    "app.parse_flags(predict.PredictSettings)\n"
    "predict.BLOCK_SIZE, number = 1024, resource.RUSAGE_SELF\n"
    "try:\n  app.run(predict.main)\nfinally:\n"
    "  print(resource.getrusage(number).ru_maxrss)"
  )
  highest = []
  for number in (3000, 60000):
    source = write(tmp_path, "a.txt", "the cat sat on the mat\n" * number)
    output = tmp_path / "a.jsonl"
    done = commands.run_code(
      code,
      f"--model={folder_of('single')}/exported",
      f"--input={source}",
      f"--output={output}",
    )
    highest.append(int(done.stdout))
  assert highest[1] < 1.05 * highest[0]


# The model


def test_a_trained_folder_is_answered_by_the_command_that_exports_it(
  folder_of, tmp_path
):
  model = folder_of("single")
  message = commands.fail(
    "predict.py", f"--model={model}", "--input=-", "--output=-"
  )
  assert f"python export_model.py --format=onnx --model_dir={model}" in message


def test_an_export_that_is_older_than_its_training_is_named(
  folder_of, many, tmp_path, caplog
):
  model = folder_of("single")
  trained = json.loads((model / "exported/model.json").read_text())["trained"]
  assert trained["step"] == 7
  description = model / "exported" / "model.json"
  before = description.read_text()
  state = model / "checkpoint"
  try:
    changed = json.loads(before) | {
      "trained": {"folder": str(model), "step": 7}
    }
    description.write_text(json.dumps(changed))
    many()
    assert "was exported from step" not in caplog.text
    state.write_text('model_checkpoint_path: "model.ckpt-9"\n')
    many()
    assert f"was exported from step 7 of {model}, which has step 9" in (
      caplog.text
    )
  finally:
    description.write_text(before)
    state.write_text('model_checkpoint_path: "model.ckpt-7"\n')


def test_flags_of_other_tasks_are_refused(folder_of, tmp_path):
  source = write(tmp_path, "a.conll", CONLL)
  message = fail(folder_of("ner"), source, "-", "--bad_rows=skip")
  assert "--bad_rows: run_ner.py has no such flag. Leave it out" in message


def test_an_ending_without_format_is_refused(folder_of, tmp_path):
  source = write(tmp_path, "a.txt", LINES)
  message = fail(folder_of("single"), source, tmp_path / "a.npy")
  assert "Let its name end in .jsonl or .tsv" in message


def test_a_tagger_takes_given_words(folder_of):
  words = ["the", "cats", "sat!"]
  with OnnxModel(str(folder_of("ner") / "exported")) as model:
    (found,) = model.predict([words])
    assert [entity.text for entity in found] == words
    # Two words are no pair.
    assert model.predict([["the", "cat"]]) == model.predict(["the cat"])
    message = refusal(model.predict, [["the", 1]])
  assert message == "texts[0]: is ['the', 1]. Give a str, or a list of words"


TASK = """
from bertlib.task.task_record import TaskRecord
from bertlib.tasks.classification import record

RECORD = TaskRecord(
  script="own",
  settings=record.RECORD.settings,
  export=record.RECORD.export,
  predictor=record.RECORD.predictor,
  onnx_head=record.RECORD.onnx_head,
)
"""


def test_a_task_of_your_own_is_predicted_for(folder_of, tmp_path, monkeypatch):
  (tmp_path / "own_module.py").write_text(TASK)
  monkeypatch.syspath_prepend(tmp_path)
  model = tmp_path / "model"
  shutil.copytree(folder_of("single"), model)
  for folder in (model, model / "exported"):
    description = json.loads((folder / "model.json").read_text())
    description.pop("meaning_sha256")
    description["script"] = "own"
    (folder / "model.json").write_text(json.dumps(description))
  source = write(tmp_path, "a.txt", LINES)
  expected = tmp_path / "expected.jsonl"
  run(folder_of("single"), source, expected)
  message = fail(model, source, tmp_path / "a.jsonl")
  assert "is a model of own, of which nothing is known here" in message
  flag = "--task_module=own_module"
  run(model, source, tmp_path / "a.jsonl", flag)
  assert (tmp_path / "a.jsonl").read_bytes() == expected.read_bytes()
