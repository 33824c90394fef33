"""What the tiny models of the tests share: special tokens, sizes, files."""

import tensorflow.compat.v1 as tf

import modeling
import tokenization

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
  "hidden_size": 16,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "intermediate_size": 32,
  "max_position_embeddings": 32,
  "type_vocab_size": 2,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def config(vocab_size, **changed):
  """A `BertConfig`; `changed` differs from `SIZES` or the defaults."""
  return modeling.BertConfig(vocab_size, **(SIZES | changed))


def write_files(folder, vocab, model_config):
  """Writes `vocab.txt` and `bert_config.json` into a folder."""
  (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocab))
  (folder / "bert_config.json").write_text(model_config.to_json_string())


def flags(folder, *more, output_dir=None):
  """Flags of a model in a folder, and more."""
  return [
    f"--vocab_file={folder / 'vocab.txt'}",
    f"--bert_config_file={folder / 'bert_config.json'}",
    f"--output_dir={output_dir or folder / 'out'}",
    "--max_seq_length=16",
    *more,
  ]


def tokenizer(*words):
  """A tokenizer of the special tokens and these words."""
  vocab = {word: index for index, word in enumerate([*SPECIAL, *words])}
  return tokenization.FullTokenizer(vocab)


def write_encoder(path, model_config):
  """Writes a checkpoint of an untrained encoder; returns its path."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    modeling.BertModel(model_config, False, tf.zeros([1, 1], tf.int32))
    session.run(tf.global_variables_initializer())
    return tf.train.Saver().save(session, str(path))
