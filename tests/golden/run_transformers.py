"""Lets transformers compute outputs of tiny models with BERT's formula.

`python tests/golden/run_transformers.py` writes `transformers.json`, with
transformers 5.24: for each class its config, the shapes of its tensors by name,
and its outputs for `IDS`, which has the padding token 1 of RoBERTa in a text.
Weights are drawn by their names, see `weight`.
"""

import json
import os
import zlib

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
IDS = [[0, 7, 1, 9, 10, 4, 2], [0, 5, 6, 2, 1, 1, 1]]
MASK = [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]
COMMON = {"vocab_size": 13, "max_position_embeddings": 16, "num_labels": 3}
OF_ROBERTA = {
  "hidden_size": 8,
  "intermediate_size": 12,
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "type_vocab_size": 1,
  "layer_norm_eps": 1e-5,
}
OF_DISTILBERT = {
  "dim": 8,
  "hidden_dim": 12,
  "n_heads": 2,
  "n_layers": 2,
  "seq_classif_dropout": 0.3,
}
OF_ELECTRA = {
  "embedding_size": 6,
  "hidden_size": 8,
  "intermediate_size": 12,
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "type_vocab_size": 1,
}
CLASSES = {
  "RobertaForSequenceClassification": OF_ROBERTA,
  "RobertaForMaskedLM": OF_ROBERTA,
  "RobertaForQuestionAnswering": OF_ROBERTA | {"num_labels": 2},
  "XLMRobertaForTokenClassification": OF_ROBERTA,
  "CamembertModel": OF_ROBERTA,
  "DistilBertModel": OF_DISTILBERT,
  "DistilBertForSequenceClassification": OF_DISTILBERT,
  "DistilBertForMaskedLM": OF_DISTILBERT,
  "ElectraModel": OF_ELECTRA,
  "ElectraForPreTraining": OF_ELECTRA | {"hidden_act": "relu"},
  "ElectraForMaskedLM": OF_ELECTRA,
  "ElectraForSequenceClassification": OF_ELECTRA | {"embedding_size": 8},
  "ElectraForMultipleChoice": OF_ELECTRA,
  "ElectraForTokenClassification": OF_ELECTRA,
  "ElectraForQuestionAnswering": OF_ELECTRA | {"num_labels": 2},
}


def weight(name, shape):
  """A tensor that depends on its name and shape only."""
  draw = np.random.RandomState(zlib.crc32(name.encode()))
  mean = float("orm" in name and name.endswith("weight"))
  return draw.normal(mean, 0.3, shape).astype(np.float32)


def outputs(name, options):
  """Config, shapes of the tensors and outputs of a model of a class."""
  model_class = getattr(transformers, name)
  config = model_class.config_class(**COMMON | options)
  config.architectures = [name]
  model = model_class(config).eval().double()  # an exact reference
  tensors = dict(model.named_parameters())  # tied ones once
  with torch.no_grad():
    for key, tensor in tensors.items():
      tensor.copy_(torch.from_numpy(weight(key, tuple(tensor.shape))))
    inputs = torch.tensor([IDS, MASK])
    if name.endswith("MultipleChoice"):
      inputs = inputs[:, None]
    found = model(inputs[0], attention_mask=inputs[1])
    losses = {}
    if name.endswith("PreTraining"):
      losses["loss"] = model(*inputs, labels=inputs[0] % 2).loss.item()
  return losses | {
    "config": config.to_diff_dict(),
    "shapes": {key: list(tensor.shape) for key, tensor in tensors.items()},
    "outputs": [np.round(v.numpy(), 6).tolist() for v in found.to_tuple()],
  }


if __name__ == "__main__":
  with open(os.path.join(HERE, "transformers.json"), "w") as file:
    json.dump({name: outputs(name, o) for name, o in CLASSES.items()}, file)
    file.write("\n")
