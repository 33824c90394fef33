"""The page for users of google-research/bert says what works."""

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
from absl import flags
from absl.testing import flagsaver

import extract_features
import modeling
import run_classifier
import run_ner
import run_pretraining
import run_squad
from bertlib import estimator_api

pytestmark = pytest.mark.train

PAGE = readme_test.ROOT / "docs" / "coming_from_google_research_bert.md"
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] who went to rome ann ? . a b good bad"
CONFIG = {
  "vocab_size": 16,
  "hidden_size": 8,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "intermediate_size": 8,
  "max_position_embeddings": 16,
}
QUESTION = {"id": "q1", "question": "Who went to Rome?"}
DATA = [{"paragraphs": [{"context": "Ann went to Rome.", "qas": [QUESTION]}]}]


@pytest.mark.process
def test_the_code_on_the_page_runs_in_one_program(tmp_path):
  for path in (*readme_test.ROOT.glob("*.py"), readme_test.ROOT / "bertlib"):
    (tmp_path / path.name).symlink_to(path)
  (tmp_path / "vocab.txt").write_text("\n".join(WORDS.split()) + "\n")
  (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
  (tmp_path / "dev.json").write_text(json.dumps({"data": DATA}))
  (tmp_path / "a.tsv").write_text("good\tann\nbad\ta b\n")
  blocks = list(readme_test.blocks_of(PAGE))
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
  [run_classifier, run_squad, run_ner, run_pretraining, extract_features],
)
def test_other_programs_need_none_of_a_script_s_flags(script):
  lengths = []
  program = types.SimpleNamespace(
    __file__="program.py",
    define_flags=functools.partial(script.define_flags, required=False),
    main=lambda _: lengths.append(flags.FLAGS.max_seq_length),
  )
  with commands.in_process(program) as main:
    main("--max_seq_length=64")
  assert lengths == [64]


def test_named_flags_that_are_unknown_are_ignored():
  with commands.in_process(run_squad), flagsaver.flagsaver():
    given = ["run_squad.py", "--output_dir=a", "--vocab_file=a"]
    given += ["--bert_config_file=a", "--save_summary_steps=3"]
    with pytest.raises(flags.UnrecognizedFlagError):
      flags.FLAGS(given)
    flags.FLAGS([*given, "--undefok=save_summary_steps"])
    assert flags.FLAGS.output_dir == "a"


@pytest.fixture(params=["reference", "resource"])
def kind_of_variable(request):
  """Graphs get the variables of TensorFlow 1 or those of TensorFlow 2."""
  if request.param == "resource":
    yield request.param
    return
  tf.disable_resource_variables()
  yield request.param
  tf.enable_resource_variables()


@pytest.mark.graph
@pytest.mark.parametrize(
  ("script", "sizes", "labels"),
  [
    (run_classifier, [2], {"label_ids": [0, 1]}),
    (run_squad, [], {"start_positions": [1, 2], "end_positions": [2, 2]}),
    (run_ner, [2], {"label_ids": [[-1, 0, 1], [-1, 1, -1]]}),
  ],
)
def test_a_step_is_trained_with_both_kinds_of_variables(
  kind_of_variable, script, sizes, labels
):
  config = modeling.BertConfig(**CONFIG)
  is_reference = kind_of_variable == "reference"
  tokens = {
    "input_ids": [[2, 5, 3], [2, 6, 3]],
    "input_mask": [[1, 1, 1], [1, 1, 0]],
    "segment_ids": [[0, 0, 0], [0, 0, 1]],
  }
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.get_or_create_global_step()
    model_fn = script.model_fn_builder(
      config,
      *sizes,
      init_checkpoint=None,
      learning_rate=1e-3,
      num_train_steps=10,
      num_warmup_steps=0,
      use_tpu=False,
      use_one_hot_embeddings=is_reference,  # whose dtype is one of its own
    )
    features = {k: tf.constant(v) for k, v in (tokens | labels).items()}
    mode = estimator_api.ModeKeys.TRAIN
    spec = model_fn(features, None, mode, {"batch_size": 2})
    table, *_ = tf.trainable_variables()
    assert table.dtype.name.endswith("_ref") == is_reference
    session.run(tf.global_variables_initializer())
    before = session.run(table)
    loss, _ = session.run([spec.loss, spec.train_op])
    assert np.isfinite(loss)
    assert (session.run(table) != before).any()
