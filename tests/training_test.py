"""Tests of what the scripts share."""

import json
import re
import sys
import types

import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf

import execution
import modeling
import training
from command_line import InputError
from execution import Execution
from optimization import StepOptions

SIZES = {
  "vocab_size": 9,
  "hidden_size": 8,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "intermediate_size": 8,
  "max_position_embeddings": 12,
  "type_vocab_size": 2,
}
CONFIG = modeling.BertConfig(**SIZES)
MODEL = {"script": "run_classifier", "task": "mrpc", "labels": ["0", "1"]}


@pytest.fixture
def checkpoint(tmp_path):
  """A checkpoint of a classifier of `CONFIG`, one step old."""
  with tf.Graph().as_default(), tf.Session() as session:
    model = modeling.BertModel(CONFIG, False, tf.zeros([1, 3], tf.int32))
    modeling.classification_logits(model.get_pooled_output(), 2)
    tf.get_variable("output_bias/adam_m", [2])
    step = tf.train.create_global_step()
    session.run(tf.global_variables_initializer())
    session.run(step.assign(7))
    return tf.train.Saver().save(session, str(tmp_path / "model.ckpt-7"))


def build(config=CONFIG, num_labels=2):
  model = modeling.BertModel(config, False, tf.zeros([1, 3], tf.int32))
  return modeling.classification_logits(model.get_pooled_output(), num_labels)


# Where weights come from


def test_weights_are_restored_and_counted(checkpoint, log):
  with tf.Graph().as_default(), tf.Session() as session:
    build()
    tf.get_variable("new", [1])
    assert training.initialize_from_checkpoint(checkpoint) is None
    session.run(tf.global_variables_initializer())
    saved = tf.train.load_checkpoint(checkpoint)
    for variable in tf.trainable_variables()[:-1]:
      np.testing.assert_array_equal(
        session.run(variable), saved.get_tensor(variable.op.name)
      )
  assert log[0] == f"25 of 26 variables restored from {checkpoint}"
  assert log[1] == "Not in the checkpoint, start at random: new"
  assert log[2] == (
    "In the checkpoint, taken by nothing: global_step, 1 moments of Adam"
  )


def test_on_a_tpu_restoring_waits_for_the_scaffold(checkpoint):
  with tf.Graph().as_default():
    build()
    scaffold_fn = training.initialize_from_checkpoint(checkpoint, use_tpu=True)
    assert isinstance(scaffold_fn(), tf.train.Scaffold)


def test_a_trained_model_goes_before_the_initial_checkpoint(
  checkpoint, tmp_path, log
):
  with tf.Graph().as_default():
    build()
    training.initialize_from_checkpoint("not there", str(tmp_path))
  assert log == [f"All weights come from {checkpoint}"]


def test_other_shapes_are_refused_by_name(checkpoint):
  other = modeling.BertConfig(**(SIZES | {"intermediate_size": 6}))
  with tf.Graph().as_default():
    build(other)
    with pytest.raises(InputError, match=r"intermediate/dense.*\[8, 8\]"):
      training.initialize_from_checkpoint(checkpoint)


def test_a_checkpoint_of_fewer_layers_is_refused(checkpoint):
  deeper = modeling.BertConfig(**(SIZES | {"num_hidden_layers": 2}))
  with tf.Graph().as_default():
    build(deeper)
    with pytest.raises(InputError, match=r"lacks 16 of.*37.*layer_1"):
      training.initialize_from_checkpoint(checkpoint)


def test_a_checkpoint_without_data_is_refused(checkpoint, tmp_path):
  (tmp_path / "model.ckpt-7.data-00000-of-00001").unlink()
  with pytest.raises(InputError, match=r"\.data files are not"):
    training.check_checkpoint(checkpoint)


def test_files_of_a_checkpoint_are_not_its_name(checkpoint):
  with pytest.raises(InputError, match=r"without \.index"):
    training.check_checkpoint(checkpoint + ".index")


# Whose folder it is


def claim(folder, **changed):
  vocab = folder / "words.txt"
  vocab.write_text("[UNK]\n")
  training.claim_output_dir(str(folder), MODEL | changed, CONFIG, str(vocab))


def test_a_claimed_folder_can_be_loaded_again(tmp_path):
  claim(tmp_path, task="mînt")
  assert training.load_model_description(str(tmp_path))["task"] == "mînt"
  config = training.load_config(str(tmp_path / "bert_config.json"))
  assert config.to_dict() == CONFIG.to_dict()
  assert (tmp_path / "vocab.txt").read_text() == "[UNK]\n"


def test_a_folder_without_checkpoint_is_anyones(tmp_path):
  claim(tmp_path)
  training.check_output_dir(str(tmp_path), MODEL | {"task": "other"}, CONFIG)


@pytest.mark.parametrize(
  ("changed", "sizes", "told"),
  [
    ({"script": "run_squad"}, {}, "script 'run_classifier'.*is 'run_squad'"),
    ({"task": "cola"}, {}, "task 'mrpc'.*is 'cola'"),
    ({"labels": ["1", "0"]}, {}, r"labels \['0', '1'\].*is \['1', '0'\]"),
    ({}, {"hidden_size": 4}, "hidden_size 8.*is 4"),
    ({}, {"vocab_size": 10}, "vocab_size 9.*is 10"),
    ({}, {"num_hidden_layers": 2}, "num_hidden_layers 1.*is 2"),
  ],
)
def test_a_folder_of_another_model_is_refused(
  checkpoint, tmp_path, changed, sizes, told
):
  claim(tmp_path)
  assert checkpoint.startswith(str(tmp_path))
  training.check_output_dir(str(tmp_path), MODEL, CONFIG)
  config = modeling.BertConfig(**(SIZES | sizes))
  with pytest.raises(InputError, match=told):
    training.check_output_dir(str(tmp_path), MODEL | changed, config)


def test_a_folder_of_the_reference_is_known_by_its_outputs(
  checkpoint, tmp_path
):
  assert checkpoint.startswith(str(tmp_path))
  training.check_output_dir(str(tmp_path), MODEL, CONFIG)
  with pytest.raises(InputError, match=r"outputs 2.*is 3"):
    training.check_output_dir(
      str(tmp_path), MODEL | {"labels": ["a", "b", "c"]}, CONFIG
    )


def test_steps_done(checkpoint, tmp_path):
  assert checkpoint.startswith(str(tmp_path))
  assert training.steps_done(str(tmp_path)) == 7
  assert training.steps_done(str(tmp_path / "nothing")) == 0


# Configs and vocabularies


@pytest.mark.parametrize(
  ("content", "told"),
  [
    ("{", "not a bert_config.json"),
    ("[1]", "not a bert_config.json"),
    ("{}", "no vocab_size"),
    ('{"vocab_size": 3, "hidden_act": "swish"}', "Unsupported activation"),
  ],
)
def test_a_config_that_is_none(tmp_path, content, told):
  path = tmp_path / "bert_config.json"
  path.write_text(content)
  with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{told}"):
    training.load_config(str(path))


def test_a_missing_config(tmp_path):
  with pytest.raises(InputError, match="cannot be read; name a bert_config"):
    training.load_config(str(tmp_path / "none.json"))


def test_a_vocabulary_that_is_not_utf8(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_bytes(b"[UNK]\n[CLS]\n[SEP]\n\xff\n")
  with pytest.raises(InputError, match="UTF-8"):
    training.load_tokenizer(str(path), True, CONFIG)


def test_a_missing_vocabulary(tmp_path):
  with pytest.raises(InputError, match=r"cannot be read; name a vocab\.txt"):
    training.load_tokenizer(str(tmp_path / "none.txt"), True, CONFIG)


@pytest.mark.parametrize(
  ("vocab", "do_lower_case"), [("cased", True), ("multi_cased", True)]
)
def test_a_cased_vocabulary_is_not_lower_cased(vocab, do_lower_case):
  config = modeling.BertConfig(200_000)
  path = reference_data.vocab(vocab)
  with pytest.raises(InputError, match="--do_lower_case=False"):
    training.load_tokenizer(path, do_lower_case, config)
  training.load_tokenizer(path, not do_lower_case, config)


@pytest.mark.parametrize("vocab", ["uncased", "chinese"])
def test_an_uncased_vocabulary_is_lower_cased(vocab):
  config = modeling.BertConfig(200_000)
  training.load_tokenizer(reference_data.vocab(vocab), True, config)


def test_an_uncased_vocabulary_with_capitals_kept():
  config = modeling.BertConfig(200_000)
  with pytest.raises(InputError, match="--do_lower_case=True"):
    training.load_tokenizer(reference_data.vocab("uncased"), False, config)


def test_a_released_checkpoint_tells_its_case(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("[UNK]\n[CLS]\n[SEP]\n")
  with pytest.raises(InputError, match="--do_lower_case=False"):
    training.load_tokenizer(
      str(path), True, CONFIG, "x/cased_L-12_H-768_A-12/bert_model.ckpt"
    )


@pytest.mark.parametrize("length", [-1, 2, 13])
def test_lengths_that_the_model_has_no_positions_for(length):
  with pytest.raises(InputError, match=f"--max_seq_length={length} .*12"):
    training.check_max_seq_length(length, CONFIG)
  training.check_max_seq_length(12, CONFIG)


# How it is computed


@pytest.fixture
def flags(monkeypatch):
  """Flags of a training run, as if nobody had set any."""
  values = types.SimpleNamespace(
    precision="float32",
    xla="auto",
    use_tpu=False,
    train_batch_size=24,
    max_seq_length=384,
    gradient_accumulation_steps=1,
    recompute_activations=False,
    memory_gb=None,
    optimizer_on_cpu=False,
    bias_correction=False,
  )
  monkeypatch.setattr(training, "FLAGS", values)
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
  return values


def test_without_flags_a_step_is_the_reference_s(flags):
  how, options = training.plan_training(training.read_execution(), CONFIG)
  assert how == Execution(packs=True, compiles=True)
  assert options == StepOptions(compiles=True)


def test_every_flag_of_a_step_arrives(flags):
  flags.gradient_accumulation_steps = 3
  flags.recompute_activations = flags.bias_correction = True
  flags.optimizer_on_cpu = True
  how, options = training.plan_training(training.read_execution(), CONFIG)
  assert how.recomputes
  assert options == StepOptions(
    bias_correction=True, num_micro_batches=3, compiles=False, on_cpu=True
  )


@pytest.mark.parametrize(
  ("precision", "scales_loss"),
  [("float32", False), ("bfloat16", False), ("float16", True)],
)
def test_float16_has_its_loss_scaled(flags, precision, scales_loss):
  flags.precision = precision
  how, options = training.plan_training(training.read_execution(), CONFIG)
  assert how.dtype == tf.as_dtype(precision)
  assert options.scales_loss == scales_loss


@pytest.mark.parametrize("fastest", ["float32", "bfloat16", "float16"])
def test_auto_is_the_fastest_format(flags, monkeypatch, fastest):
  flags.precision = "auto"
  monkeypatch.setattr(execution, "fastest_dtype", lambda: fastest)
  assert training.read_execution().dtype == tf.as_dtype(fastest)


@pytest.mark.parametrize(
  ("xla", "devices", "compiles"),
  [
    ("auto", [], True),
    ("auto", ["a GPU"], False),
    ("on", ["a GPU"], True),
    ("off", [], False),
  ],
)
def test_what_is_compiled(flags, monkeypatch, xla, devices, compiles):
  flags.xla = xla
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: devices)
  how, options = training.plan_training(training.read_execution(), CONFIG)
  assert how.compiles == options.compiles == compiles


def test_a_tpu_gets_static_shapes_and_compiles_by_itself(flags):
  flags.use_tpu, flags.precision, flags.xla = True, "auto", "on"
  assert training.read_execution() == Execution(tf.bfloat16)


def test_padding_that_counts_is_kept(flags):
  assert not training.read_execution(packs=False).packs


@pytest.mark.parametrize("num_parts", [5, 48])
def test_parts_that_do_not_divide_the_batch_are_refused(flags, num_parts):
  flags.gradient_accumulation_steps = num_parts
  with pytest.raises(
    InputError,
    match=f"--gradient_accumulation_steps={num_parts} .*--train_batch_size=24",
  ):
    training.plan_training(Execution(), CONFIG)


LARGE = modeling.BertConfig(
  30522,
  hidden_size=1024,
  num_hidden_layers=24,
  num_attention_heads=16,
  intermediate_size=4096,
)


def test_memory_decides_over_parts_and_tells(flags, log):
  flags.memory_gb = 12.0
  how, options = training.plan_training(Execution(tf.bfloat16), LARGE)
  assert 24 % options.num_micro_batches == 0 and options.num_micro_batches > 1
  (line,) = log
  assert "--memory_gb=12: " in line
  assert f"--gradient_accumulation_steps={options.num_micro_batches}," in line
  no = "" if how.recomputes else "no"
  assert f"--{no}recompute_activations" in line


def test_memory_that_suffices_changes_nothing(flags):
  flags.memory_gb = 1000.0
  how, options = training.plan_training(Execution(), LARGE)
  assert not how.recomputes and options.num_micro_batches == 1


def test_too_little_memory_is_refused(flags):
  flags.memory_gb = 2.0
  with pytest.raises(
    InputError, match=r"--memory_gb=2: .*384 tokens.*--max_seq_length"
  ):
    training.plan_training(Execution(), LARGE)


def train_spec(loss_fn, **options):
  """A step of a weight that stays as it is, so that its loss does too."""
  return training.train_spec(
    loss_fn,
    batch={"x": tf.ones([4, 2])},
    learning_rate=0.0,
    num_train_steps=10,
    num_warmup_steps=0,
    use_tpu=False,
    options=StepOptions(**options),
    seed=7,
    restore=lambda: None,
    batch_size=4,
    log_steps=1,
  )


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_no_two_parts_of_a_run_have_one_draw_of_dropout(num_parts):
  draws = []

  def loss_fn(part, dropout_seed):
    weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    seed, draw = dropout_seed
    assert seed == 7
    bit = tf.cast(2**draw, tf.float32)  # of each draw its own
    return tf.reduce_mean(part["x"] * weight) * bit, {}

  with tf.Graph().as_default(), tf.Session() as session:
    spec = train_spec(loss_fn, num_micro_batches=num_parts)
    session.run(tf.global_variables_initializer())
    for _ in range(3):
      loss, _ = session.run([spec.loss, spec.train_op])
      draws.append(round(float(loss) * num_parts))
  # All bits of 0 to 3 * num_parts once: no draw is missing or met again.
  assert sum(draws) == 2 ** (3 * num_parts) - 1


def test_a_scaled_loss_is_shown_as_it_is_with_its_scale(log):
  def loss_fn(part, _):
    weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    return tf.reduce_mean(part["x"] * weight), {}

  with tf.Graph().as_default():
    spec = train_spec(loss_fn, scales_loss=True)
    with tf.train.SingularMonitoredSession(
      hooks=spec.training_hooks
    ) as session:
      session.run(spec.train_op)
  (line,) = (line for line in log if line.startswith("step 1 of 10"))
  assert "loss 1," in line and "loss scale 3.277e+04," in line


# Hooks and results


def test_progress_shows_every_so_many_steps_and_the_last(log):
  with tf.Graph().as_default():
    step = tf.train.create_global_step()
    train_op = step.assign_add(1, read_value=False)
    hook = training.ProgressHook(
      {"loss": tf.cast(step, tf.float32) * 0.5}, 5, batch_size=4, log_steps=2
    )
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
      for _ in range(5):
        session.run(train_op)
  shown = [line for line in log if line.startswith("step")]
  assert [line.split(":")[0] for line in shown] == [
    "step 2 of 5",
    "step 4 of 5",
    "step 5 of 5",
  ]
  pattern = r"step 5 of 5: loss [\d.]+, examples/s [\d.e+]+, 0:00:00 left"
  assert re.fullmatch(pattern, shown[-1])


def test_on_a_terminal_progress_is_a_bar(monkeypatch, capsys, log):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with tf.Graph().as_default():
    step = tf.train.create_global_step()
    train_op = step.assign_add(1, read_value=False)
    hook = training.ProgressHook({"loss": tf.constant(0.5)}, 3, 4, log_steps=1)
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
      for _ in range(3):
        session.run(train_op)
  bar = capsys.readouterr().err
  assert "3/3" in bar and "loss=0.5" in bar and "examples/s=" in bar
  assert log == []


def test_collected_batches_are_joined():
  into = {}
  with tf.Graph().as_default():
    dataset = tf.data.Dataset.range(5).batch(2)
    batch = tf.data.make_one_shot_iterator(dataset).get_next()
    hook = training.CollectHook({"x": batch}, into)
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
      for _ in range(3):
        session.run(batch)
  assert into["x"].tolist() == [0, 1, 2, 3, 4]


def test_results_have_the_form_of_the_reference(tmp_path, log):
  path = tmp_path / "eval_results.txt"
  training.write_results(
    str(path), {"loss": np.float32(2 / 3), "eval_accuracy": 1, "a": [[1, 2]]}
  )
  assert (
    path.read_text() == "a = [[1, 2]]\neval_accuracy = 1\nloss = 0.6666667\n"
  )
  assert [line.strip() for line in log] == path.read_text().splitlines()


def test_model_description_is_json_that_people_can_read(tmp_path):
  claim(tmp_path, labels=["ja", "nein"])
  text = (tmp_path / "model.json").read_text()
  assert json.loads(text)["labels"] == ["ja", "nein"]
  assert "\n" in text.strip()
