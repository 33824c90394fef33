"""Tests of the page for users of google-research/bert."""

import functools
import json
import os
import subprocess
import sys
import types

import commands
import numpy as np
import pytest
import readme_test
import tensorflow.compat.v1 as tf
import tiny_model
from absl import flags
from absl.testing import flagsaver

import create_pretraining_data
import extract_features
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_squad
from bertlib.data import tf_records
from bertlib.tasks.classification import classification_records
from bertlib.tasks.pretraining import pretraining_instances
from bertlib.tasks.squad import squad_windows

pytestmark = pytest.mark.unit

PAGE = readme_test.ROOT / "docs" / "coming_from" / "google_research_bert.md"
WORDS = "who went to rome ann ? . a b good bad"
VOCAB = [*tiny_model.SPECIAL, *WORDS.split()]
QUESTION = {"id": "q1", "question": "Who went to Rome?"}
DATA = [{"paragraphs": [{"context": "Ann went to Rome.", "qas": [QUESTION]}]}]


@pytest.mark.process
def test_code_on_the_page_runs_in_one_program(tmp_path):
  for path in (*readme_test.ROOT.glob("*.py"), readme_test.ROOT / "bertlib"):
    (tmp_path / path.name).symlink_to(path)
  tiny_model.write_files(tmp_path, VOCAB, tiny_model.config(len(VOCAB)))
  (tmp_path / "dev.json").write_text(json.dumps({"data": DATA}))
  (tmp_path / "a.tsv").write_text("good\tann\nbad\ta b\n")
  blocks = [b for b in readme_test.blocks_of(PAGE) if not b.remark]
  shell = "".join(b.text for b in blocks if b.language == "shell")
  subprocess.run(["bash", "-ec", shell], cwd=tmp_path, check=True)
  python = [block.text for block in blocks if block.language == "python"]
  assert len(python) == 5
  done = subprocess.run(
    [sys.executable, "-c", "\n".join(python)],
    capture_output=True,
    cwd=tmp_path,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert set(json.loads(done.stdout.replace("'", '"'))) == {"q1"}
  assert (tmp_path / "eval.tf_record").stat().st_size


@pytest.mark.parametrize(
  "script",
  [
    run_classifier,
    run_squad,
    run_ner,
    run_embeddings,
    run_pretraining,
    extract_features,
    create_pretraining_data,
  ],
)
def test_other_programs_need_no_flags_of_a_script(script):
  lengths = []
  program = types.SimpleNamespace(
    __file__="program.py",
    define_flags=functools.partial(script.define_flags, required=False),
    main=lambda _: lengths.append(flags.FLAGS.max_seq_length),
  )
  with commands.in_process(program) as main:
    main("--max_seq_length=64")
  assert lengths == [64]


FEATURES = [
  run_classifier.InputFeatures([2, index, 3], [1, 1, 1], [0, 0, 0], index)
  for index in range(4)
]
TEXTS = [
  extract_features.InputFeatures(index, ["a"], [2, 4, 3], [1, 1, 1], [0, 0, 0])
  for index in range(4)
]


def input_fn_over_records(builder, layout, *arguments):
  """A function of a file that it writes, with four records of `layout`."""

  def build(path):
    row = {name: np.ones(f.shape).tolist() for name, f in layout.items()}
    tf_records.write_records(path, [row] * 4, layout)
    is_list = builder is run_pretraining.input_fn_builder
    return builder([path] if is_list else path, *arguments)

  return build


INPUT_FNS = {
  "squad by length": input_fn_over_records(
    functools.partial(run_squad.input_fn_builder, by_length=True),
    squad_windows.record_layout(3, False),
    *(3, False, False),
  ),
  "extract_features": lambda _: extract_features.input_fn_builder(TEXTS, 3),
}
for training in (True, False):
  INPUT_FNS |= {
    f"classifier {training}": lambda _, training=training: (
      run_classifier.input_fn_builder(FEATURES, 3, training, training)
    ),
    f"classifier records {training}": input_fn_over_records(
      run_classifier.file_based_input_fn_builder,
      classification_records.record_layout(3),
      *(3, training, training),
    ),
    f"squad {training}": input_fn_over_records(
      run_squad.input_fn_builder,
      squad_windows.record_layout(3, training),
      *(3, training, training),
    ),
    f"pretraining {training}": input_fn_over_records(
      run_pretraining.input_fn_builder,
      pretraining_instances.record_layout(3, 1),
      *(3, 1, training),
    ),
  }


@pytest.mark.graph
@pytest.mark.parametrize("name", INPUT_FNS)
def test_datasets_have_the_iterators_of_tensorflow_1(name, tmp_path):
  input_fn = INPUT_FNS[name](str(tmp_path / "a.tf_record"))
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = input_fn({"batch_size": 2})
    assert dataset.output_types["input_ids"] == tf.int32
    assert dataset.output_shapes["input_ids"][1] == 3
    assert dataset.output_classes["input_ids"] == tf.Tensor
    one_shot = dataset.make_one_shot_iterator()
    initializable = dataset.make_initializable_iterator()
    structure = dataset.output_types, dataset.output_shapes
    switched = tf.data.Iterator.from_structure(*structure)
    session.run([initializable.initializer, switched.make_initializer(dataset)])
    batches = [
      session.run(iterator.get_next()["input_ids"]).tolist()
      for iterator in (one_shot, initializable, switched)
    ]
  assert batches[0] == batches[1] == batches[2]
  assert np.shape(batches[0]) == (2, 3)


def test_unknown_flags_are_ignored_if_named():
  with commands.in_process(run_squad), flagsaver.flagsaver():
    given = ["run_squad.py", "--output_dir=a", "--vocab_file=a"]
    given += ["--bert_config_file=a", "--save_summary_steps=3"]
    with pytest.raises(flags.UnrecognizedFlagError):
      flags.FLAGS(given)
    flags.FLAGS([*given, "--undefok=save_summary_steps"])
    assert flags.FLAGS.output_dir == "a"
