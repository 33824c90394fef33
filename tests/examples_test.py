"""The examples run as they say, on a BERT of one small layer."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow as tf
import tiny_model
from parametrize import parametrize

import tokenization
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api  # noqa: F401 (before anything else uses tf.keras)
from bertlib.reporting import comparison, own_task
from examples import (
  compare_with_transformers,
  custom_loop_tf2,
  demo_task,
  keras_model,
)

pytestmark = pytest.mark.train

EXAMPLES = os.path.join(commands.ROOT, "examples")

needs_hub = pytest.mark.skipif(
  not importlib.util.find_spec("tensorflow_hub"), reason="no tensorflow-hub"
)
needs_keras_3 = pytest.mark.skipif(
  tf.__version__.startswith("2.15"), reason="TensorFlow 2.15 has no Keras 3"
)
KERAS = [
  pytest.param("2", marks=[needs_hub, pytest.mark.slow]),
  pytest.param("3", marks=needs_keras_3),
]


def text_of(*path):
  with open(os.path.join(commands.ROOT, *path), encoding="utf-8") as file:
    return file.read()


TEXTS = [text_of("demo", "train.tsv"), text_of("examples", "pairs.tsv")]
WORDS = sorted(set(re.findall(r"\w+|[^\w\s]", "\n".join(TEXTS).lower())))
VOCAB = [*tiny_model.SPECIAL, *WORDS]
CONFIG = tiny_model.config(
  len(VOCAB),
  hidden_size=32,
  intermediate_size=64,
  max_position_embeddings=64,
  initializer_range=0.2,
)


@pytest.fixture(scope="module")
def bert_dir(tmp_path_factory):
  """A folder with a BERT that knows the examples' words, and no more."""
  folder = tmp_path_factory.mktemp("bert")
  tiny_model.write_files(folder, VOCAB, CONFIG)
  tiny_model.write_encoder(folder / "bert_model.ckpt", CONFIG)
  return folder


def flags_for(bert_dir):
  return [f"--bert_dir={bert_dir}", "--num_steps=120", "--learning_rate=2e-3"]


def run(example, *flags):
  """Runs an example, but in this process; gives what it printed."""
  output = io.StringIO()
  with (
    pytest.MonkeyPatch.context() as patch,
    commands.in_process(example) as main,
    contextlib.redirect_stdout(output),
  ):
    patch.chdir(commands.ROOT)
    main(*flags)
  return output.getvalue()


def check_losses(output):
  losses = [float(loss) for loss in re.findall(r"loss:? ([\d.]+)", output)]
  assert len(losses) == 5
  assert losses[-1] < 0.9 * losses[0]


def accuracy(output):
  return float(re.search("accuracy[ =]+(.*)", output)[1])


@pytest.mark.process
def test_graph_learns_and_labels_a_text(bert_dir):
  done = subprocess.run(
    [sys.executable, "-m", "examples.graph_tf1", *flags_for(bert_dir)],
    cwd=commands.ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  check_losses(done.stdout)
  assert accuracy(done.stdout) > 0.25
  assert done.stdout.splitlines()[-1].partition(":")[0] in demo_task.LABELS


def test_saved_model_and_checkpoint_hold_the_model_that_learned(
  bert_dir, tmp_path, monkeypatch
):
  flags = *flags_for(bert_dir), f"--output_dir={tmp_path}"
  output = run(custom_loop_tf2, *flags)
  check_losses(output)
  saved = tf.saved_model.load(str(tmp_path / "saved_model"))
  model = custom_loop_tf2.Classifier(CONFIG, None)
  checkpoint = tf.train.Checkpoint(model=model)
  checkpoint.read(str(tmp_path / "checkpoint")).expect_partial()
  tokenizer = tokenization.FullTokenizer(bert_dir / "vocab.txt")
  monkeypatch.chdir(commands.ROOT)
  rows = demo_task.read_tokens(tokenizer, "dev")
  label_ids = rows.pop("label_ids")
  rows = {name: tf.constant(values) for name, values in rows.items()}
  predictions = saved.probabilities(rows).numpy()
  np.testing.assert_array_equal(predictions, model.probabilities(rows).numpy())
  right = np.mean(np.argmax(predictions, axis=-1) == label_ids)
  assert accuracy(output) == pytest.approx(right, abs=0.005)


def use_two_heads(*flags):
  return commands.succeed("examples/two_heads.py", *flags)


def test_a_task_of_ones_own_is_measured_by_its_accuracy():
  rows = own_task.Rows(encode=None, decode=None, gold=None)
  gold, predicted = [["a"], ["b"]], [["a"], ["c"]]
  assert rows.measure(None, gold, predicted) == {"accuracy": 0.5}


@pytest.fixture(scope="module")
def two_heads(bert_dir, tmp_path_factory):
  """Flags of a task with two labels a text, and the folder of its training."""
  folder = tmp_path_factory.mktemp("two_heads")
  for split in ("train", "dev"):
    header, *rows = text_of("demo", f"{split}.tsv").splitlines()
    table = [f"{header}\tends_with"]
    for row in rows:
      end = "?" if "?\t" in row else "else"
      table.append(f"{row}\t{end}")
    (folder / f"{split}.tsv").write_text("\n".join(table))
  flags = [
    f"--bert_config_file={bert_dir}/bert_config.json",
    f"--vocab_file={bert_dir}/vocab.txt",
    f"--init_checkpoint={bert_dir}/bert_model.ckpt",
    f"--train_file={folder}/train.tsv",
    f"--dev_file={folder}/dev.tsv",
    "--label_columns=label,ends_with",
    "--max_seq_length=32",
    f"--output_dir={folder}/output",
  ]
  more = "--learning_rate=2e-3", "--num_train_epochs=8", "--eval_steps=20"
  use_two_heads(*flags, "--do_train", "--do_eval", "--xla=off", *more)
  return flags, folder / "output"


def test_a_task_of_ones_own_refuses_flags_before_slow_imports():
  code = "import runpy, sys; sys.modules['tensorflow'] = None; sys.argv = {}\n"
  code += "runpy.run_path('examples/two_heads.py', {}, '__main__')"
  for wrong in ("--trian_file=a", "--do_train"):
    argv = ["two_heads.py", "--label_columns=a,b", "--output_dir=c", wrong]
    argv += ["--vocab_file=v", "--bert_config_file=c"]
    done = commands.run_code(code.format(argv, {}))
    assert done.returncode == 1
    assert done.stderr.startswith("two_heads.py: error: --"), done.stderr


def test_a_task_with_two_heads_learns_both(two_heads):
  flags, folder = two_heads
  results = run_outputs.read_results(folder / "eval_results.txt")
  assert float(results["label"]) > 0.3
  assert float(results["ends_with"]) > 0.8
  assert (folder / "run.json").exists()
  again = use_two_heads(*flags, "--do_eval")
  assert f"mean_accuracy = {results['mean_accuracy']}" in again.stderr
  report = (folder / "report.html").read_text()
  assert "python -m examples.two_heads" in report


def test_the_model_of_a_task_of_ones_own_is_used_and_exported(
  two_heads, tmp_path
):
  _, folder = two_heads
  texts = tmp_path / "texts.txt"
  texts.write_text("Is it good?\nIt is.\n")
  predict = "--do_predict", f"--predict_file={texts}"
  use_two_heads(f"--output_dir={folder}", *predict)
  written = (folder / "texts_predictions.tsv").read_text().splitlines()
  exported = str(tmp_path / "exported")
  flags = f"--model_dir={folder}", f"--export_dir={exported}"
  export = "export_model.py", *flags
  failed = commands.run(*export, "--task_module=examples.graph_tf1")
  assert "--task_module=examples.graph_tf1: has no RECORD" in failed.stderr
  commands.succeed(*export, "--task_module=examples.two_heads")
  label = tf.saved_model.load(exported).signatures["text"]
  found = label(text_a=tf.constant(texts.read_text().splitlines()))
  heads = [found[f"label_{head}"].numpy() for head in range(2)]
  said = ["\t".join(line.split("\t")[:2]) for line in written[1:]]
  assert said == [f"{a.decode()}\t{b.decode()}" for a, b in zip(*heads)]
  assert written[1].endswith("\tIs it good?")


def test_runs_of_a_task_of_ones_own_are_compared(two_heads, tmp_path):
  _, folder = two_heads
  runs = [str(folder), str(shutil.copytree(folder, tmp_path / "again"))]
  rows = comparison.difference_rows(comparison.find_runs(runs))
  names = [row["metric"] for row in rows]
  assert names == ["mean_accuracy", "ends_with", "label", comparison.TEST]


def test_the_doctor_checks_a_task_of_ones_own(two_heads):
  flags, _ = two_heads
  more = "--do_train", "--doctor", "--vocab_file=gone.txt"
  done = commands.run("examples/two_heads.py", *flags, *more)
  printed = dict(line.split()[1::-1] for line in done.stdout.splitlines())
  assert done.returncode == 1
  assert printed["vocabulary"] == "fail" and printed["config"] == "pass"


@pytest.mark.parametrize("keras", KERAS)
def test_keras_model_and_its_encoder_learn_from_raw_text(
  keras, bert_dir, monkeypatch
):
  ids = np.random.default_rng(1).integers(5, len(VOCAB), [2, 6])
  mask = np.array([[1] * 6, [1] * 4 + [0] * 2])  # the second row has padding
  segments = np.array([[0, 0, 1, 1, 1, 1], [0] * 6])
  tensors = (tf.constant(v, tf.int32) for v in (ids, mask, segments))
  rows = dict(zip(keras_model.INPUTS, tensors))
  build_model = keras_model.build_model
  kept = []

  def build_and_keep(keras, encoder, optimizer):
    kept.extend((encoder, encoder(rows)["pooled_output"].numpy()))
    return build_model(keras, encoder, optimizer)

  monkeypatch.setattr(keras_model, "build_model", build_and_keep)
  check_losses(run(keras_model, *flags_for(bert_dir), f"--keras={keras}"))
  encoder, before = kept
  after = encoder(rows)["pooled_output"].numpy()
  assert np.abs(after - before).max() > 1e-2


def features(*values):
  """A line of extract_features.py: layer -1 of tokens of two numbers."""
  return {
    "features": [
      {"token": f"t{n}", "layers": [{"index": -1, "values": numbers}]}
      for n, numbers in enumerate(values)
    ]
  }


@pytest.mark.unit
@parametrize(
  "lines, largest",
  ([[[1, 2], [3, 4]], [[1, 2.5], [3, 4]]], 0.5),
  ([[[1, 2.25], [3, 4]], [[1, 2], [3, 4]]], 0.25),
  ([[[1, 2], [3, None]], [[1, 2], [3, 4]]], np.nan),
)
def test_the_largest_difference_of_a_layer_is_that_of_all_lines(lines, largest):
  states = {-1: np.float32([[1, 2], [3, 4]])}
  found = compare_with_transformers.compare(
    ((1, features(*values)) for values in lines), lambda tokens: states
  )
  np.testing.assert_equal(found, {-1: largest})


@pytest.mark.unit
@parametrize("states", {-1: np.zeros([2, 3])}, {-2: np.ones(1)})
def test_layers_of_another_model_are_refused(states):
  lines = [(7, features([1, 2], [3, 4]))]
  with pytest.raises(InputError, match=r"line 7: layer -1 has shape \(2, 2\)"):
    compare_with_transformers.compare(lines, lambda tokens: states)


@pytest.mark.unit
@parametrize("value, status", (1, 0), (1.00005, 0), (1.001, 1), (None, 1))
def test_a_difference_is_the_status_of_the_command(
  value, status, tmp_path, monkeypatch
):
  (tmp_path / "lines").write_text(json.dumps(features([value])) + "\n")
  model = lambda tokens: {-1: np.ones([1, 1])}  # noqa: E731
  monkeypatch.setattr(compare_with_transformers, "load", lambda folder: model)
  with commands.in_process(compare_with_transformers) as main:
    given = f"--features_file={tmp_path}/lines", "--hugging_face_dir=a"
    assert main(*given) == status


@pytest.mark.process
def test_hidden_states_agree_with_those_of_transformers(bert_dir, tmp_path):
  python = os.environ.get("TRANSFORMERS_PYTHON")
  if not python:
    for package in ("torch", "transformers"):
      if not importlib.util.find_spec(package):
        pytest.skip("pip install -e '.[compare,torch]'")
  text, written = tmp_path / "text.txt", tmp_path / "features.jsonl"
  text.write_text("Is it good? ||| It is.\nIt is.\n")
  commands.succeed(
    "convert_checkpoint.py",
    f"--input={bert_dir}/bert_model.ckpt",
    f"--output={tmp_path}/theirs",
  )
  commands.succeed(
    "extract_features.py",
    f"--init_checkpoint={bert_dir}/bert_model.ckpt",
    f"--bert_config_file={bert_dir}/bert_config.json",
    f"--vocab_file={bert_dir}/vocab.txt",
    f"--input_file={text}",
    f"--output_file={written}",
    "--max_seq_length=64",
    "--layers=0,-1",
  )
  compare = [
    *(python or sys.executable, "-m", "examples.compare_with_transformers"),
    f"--hugging_face_dir={tmp_path}/theirs",
  ]
  done = subprocess.run(
    [*compare, f"--features_file={written}"],
    cwd=commands.ROOT,
    capture_output=True,
    text=True,
    check=False,
    env=os.environ | {"HF_HUB_OFFLINE": "1"},
  )
  assert re.fullmatch("layer 0\t.+\nlayer -1\t.+\n", done.stdout), done.stderr
  assert done.returncode == 0


@pytest.mark.process
def test_notebook_runs_to_its_end(bert_dir, monkeypatch):
  nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
  nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
  pytest.importorskip("ipykernel", reason="needs ipykernel")
  # Relative to the root of the repository, as examples/README.md has it.
  relative = os.path.relpath(bert_dir, commands.ROOT)
  monkeypatch.setenv("BERT_DIR", relative)
  notebook = nbformat.read(os.path.join(EXAMPLES, "sentence_pairs.ipynb"), 4)
  nbclient.NotebookClient(
    notebook, timeout=600, resources={"metadata": {"path": EXAMPLES}}
  ).execute()
  outputs = [
    output for cell in notebook.cells for output in cell.get("outputs", ())
  ]
  printed = "".join(
    output.text for output in outputs if output.get("name") == "stdout"
  )
  by_hand, of_model = (
    np.array(logits.split(), float)
    for logits in re.findall(r"^logits.*\[(.*)\]", printed, re.M)
  )
  np.testing.assert_allclose(by_hand, of_model, atol=1e-5)
  matrix = re.findall(r"^gold (?:other|same) +(\d+) +(\d+)$", printed, re.M)
  assert np.sum(np.array(matrix, int)) == 24
  assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


@pytest.mark.unit
def test_stored_notebook_names_no_folder_of_a_machine():
  text = text_of("examples", "sentence_pairs.ipynb")
  assert not re.search(r'["\s](/\w+){2}|stderr', text)
