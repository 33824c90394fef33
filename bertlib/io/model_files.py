"""Names of the files of a model in its folder."""

from __future__ import annotations

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"
DESCRIPTION = "model.json"

# Files that are copied together with a checkpoint.
COMPANIONS = (CONFIG, VOCAB, DESCRIPTION)

# Checkpoint of a published or converted model.
CHECKPOINT = "bert_model.ckpt"

# Files by the flag that names them.
BY_FLAG = {"vocab_file": VOCAB, "bert_config_file": CONFIG}
