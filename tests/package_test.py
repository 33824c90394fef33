"""The three libraries in other people's folders."""

import os
import shutil
import subprocess
import sys

import commands
import pytest

pytestmark = pytest.mark.process

LIBRARIES = ("modeling.py", "optimization.py", "tokenization.py")

PROGRAM = """
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
from linked import modeling, optimization, tokenization

def train(modeling, optimization):
  config = modeling.BertConfig(9, 8, 1, 2, 16, max_position_embeddings=5)
  with tf.Graph().as_default():
    model = modeling.BertModel(
      config, True, tf.constant([[1, 2, 3]]), use_one_hot_embeddings=True
    )
    loss = tf.reduce_mean(tf.square(model.get_sequence_output() - 1.0))
    train_op = optimization.create_optimizer(loss, 0.1, 10, 0, False)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      losses = [session.run([loss, train_op])[0] for _ in range(5)]
    assert losses[-1] < losses[0], losses
    return type(tf.trainable_variables()[0]).__name__

print(train(modeling, optimization))
assert tokenization.BasicTokenizer().tokenize("A,b") == ["a", ",", "b"]

tf.disable_v2_behavior()
from bert import modeling as copied, optimization
print(train(copied, optimization))

import modeling as alone  # one copied file
with tf.Graph().as_default():
  config = alone.BertConfig(9, 8, 1, 2)
  alone.BertModel(config, True, tf.constant([[1]]))
"""


def test_they_work_as_a_package_of_copies_or_links(tmp_path):
  for folder, place in (("bert", shutil.copy), ("linked", os.symlink)):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "__init__.py").touch()
    for name in LIBRARIES:
      place(os.path.join(commands.ROOT, name), tmp_path / folder / name)
  shutil.copy(os.path.join(commands.ROOT, "modeling.py"), tmp_path)
  program = tmp_path / "program.py"
  program.write_text(PROGRAM)
  done = subprocess.run(
    [sys.executable, program],  # whose folder is first on its path
    capture_output=True,
    text=True,
    check=False,
    env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == ["ResourceVariable", "RefVariable"]
