"""Tests of the three libraries copied into other projects."""

import os
import pathlib
import shutil
import subprocess
import sys

import commands
import pytest

pytestmark = pytest.mark.process

LIBRARIES = ("modeling.py", "optimization.py", "tokenization.py")


ALONE = """
import importlib
import sys

import tensorflow.compat.v1 as tf

(root,) = sys.argv[1:]
tf.disable_v2_behavior()
tf.set_random_seed(1)
path = sys.path[1:]

def load(name):  # from a folder that has nothing else
  sys.path[:] = [f"{root}/{name}", *path]
  return importlib.import_module(name)

modeling = load("modeling")
config = modeling.BertConfig(9, 8, 2, 2, 16, max_position_embeddings=5)
ids = tf.constant([[1, 2, 3], [4, 5, 0]])
mask = tf.cast(ids > 0, tf.int32)
seed = 1, tf.train.get_or_create_global_step()
model = modeling.BertModel(config, True, ids, mask, dropout_seed=seed)
logits = modeling.masked_lm_logits(
  config, model.get_sequence_output(), model.get_embedding_table(), 2 * mask
)
losses, _ = modeling.cross_entropy(logits, tf.ones([6], tf.int32))
loss = tf.reduce_mean(losses)
plain_step = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.variable_scope("", reuse=True):
  model = modeling.BertModel(config, False, ids, mask)
state = model.get_pooled_output()

optimization = load("optimization")
step = optimization.create_optimizer(loss, 0.01, 100, 0, False)

tokenization = load("tokenization")
assert tokenization.BasicTokenizer().tokenize("A,b") == ["a", ",", "b"]

with tf.Session() as session:
  session.run(tf.global_variables_initializer())
  before = session.run(state)
  for train_op in (plain_step, step):
    first = session.run(loss)
    for _ in range(10):
      session.run(train_op)
    assert session.run(loss) < first
  assert abs(session.run(state) - before).max() > 0
for name, module in sorted(sys.modules.items()):
  print(name, getattr(module, "__file__", None), sep="=")
"""


def test_each_library_works_alone_in_an_empty_folder(tmp_path):
  for name in LIBRARIES:
    folder = tmp_path / name.removesuffix(".py")
    folder.mkdir()
    shutil.copy(os.path.join(commands.ROOT, name), folder)
  program = tmp_path / "program" / "program.py"  # its folder is on the path
  program.parent.mkdir()
  program.write_text(ALONE)
  done = subprocess.run(
    [sys.executable, program, tmp_path],
    capture_output=True,
    text=True,
    check=False,
    env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
  )
  assert done.returncode == 0, done.stderr
  # An installed copy of the project is not what made it work.
  modules = dict(line.split("=", 1) for line in done.stdout.splitlines())
  ours = {path.stem for path in pathlib.Path(commands.ROOT).glob("*.py")}
  ours = ours - {"setup"} | {"bertlib"}
  imported = {
    name: path for name, path in modules.items() if name.split(".")[0] in ours
  }
  assert imported == {
    name.removesuffix(".py"): str(tmp_path / name.removesuffix(".py") / name)
    for name in LIBRARIES
  }
