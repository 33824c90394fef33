"""Five tasks with byte-level BPE and unigram, from raw text to other programs.

The programs are transformers, whose tokenizer reads the export, and
transformers.js, from npm:

    python -m pytest -m slow tests/export/subword_models_test.py
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import commands
import javascript_test
import numpy as np
import pytest
import tiny_subword
from parametrize import parametrize

from bertlib.checkpoints import checkpoint_files
from bertlib.export import OnnxModel

onnxruntime = pytest.importorskip("onnxruntime", reason=".[test]")
pytest.importorskip("tokenizers", reason=".[tokenizers]")

pytestmark = pytest.mark.slow

LENGTH = "--max_seq_length=30"
SENTENCE = "the cat sat on the mat, and the dog ran"
QUESTION = "the dog ran?"
TEXTS = ["the cat sat", "naïve  cafés are open;", "日本語 here", "a dog ran"]
TRAINING = ("--do_train", "--do_eval", "--learning_rate=1e-2")
EPOCHS = ("--num_train_epochs=20", "--train_batch_size=4")
SCRIPTS = {
  "classification": "run_classifier.py",
  "tagging": "run_ner.py",
  "questions": "run_squad.py",
  "embeddings": "run_embeddings.py",
  "masked_lm": "run_pretraining.py",
}
IN_NODE = """
import { AutoModel, AutoTokenizer, Tensor, env } from
  "@huggingface/transformers";
import { readFileSync } from "node:fs";
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "exported/";
const found = {};
for (const [name, texts] of JSON.parse(readFileSync("texts.json"))) {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModel.from_pretrained(name);
  found[name] = [];
  for (const [first, second] of texts) {
    const inputs = tokenizer(first, second ? { text_pair: second } : {});
    const ids = Array.from(inputs.input_ids.data, Number);
    const positions = ids.flatMap((id, i) => id == MASK ? [BigInt(i)] : []);
    inputs.masked_lm_positions = new Tensor(
      "int64", BigInt64Array.from(positions), [1, positions.length],
    );
    const [output] = Object.values(await model(inputs));
    found[name].push([ids, output.tolist()[0]]);
  }
}
console.log(JSON.stringify(found));
"""


def write_data(folder):
  """Writes the data of each task."""
  rows = [f"{t}\tthe mat\t{i % 2}\n" for i, t in enumerate(TEXTS * 4)]
  tags = [
    f"{word} {'B-X' if word == 'the' else 'O'}\n" for word in SENTENCE.split()
  ]
  answers = [{"text": "the mat", "answer_start": SENTENCE.index("the mat")}]
  qas = [
    {"id": str(i), "question": QUESTION, "answers": answers} for i in range(8)
  ]
  questions = {"data": [{"paragraphs": [{"context": SENTENCE, "qas": qas}]}]}
  pairs = [f"{text}\t{text} here\n" for text in TEXTS * 4]
  for name, content in {
    "train.tsv": "".join(rows),
    "dev.tsv": "".join(rows),
    "tags.txt": "\n".join(["".join(tags)] * 8),
    "squad.json": json.dumps({"version": "1.1"} | questions),
    "pairs.tsv": "first\tsecond\n" + "".join(pairs),
    "text.txt": (SENTENCE + "\n") * 30,
  }.items():
    (folder / name).write_text(content, encoding="utf-8")
  commands.succeed(
    "create_pretraining_data.py",
    f"--input_file={folder}/text.txt",
    f"--vocab_file={folder}/encoder/tokenizer.json",
    f"--output_file={folder}/data.tfrecord",
    *("--segments=documents", "--do_whole_word_mask", LENGTH),
  )


def flags_of(folder):
  """Flags of the training of each task."""
  return {
    "classification": [
      *("--task_name=tsv", f"--data_dir={folder}", "--text_b_column=2"),
      *("--label_column=3", *EPOCHS),
    ],
    "tagging": [
      *(f"--train_file={folder}/tags.txt", f"--dev_file={folder}/tags.txt"),
      *("--num_train_epochs=80", "--train_batch_size=4"),
    ],
    "questions": [
      *(f"--train_file={folder}/squad.json", "--max_query_length=8"),
      *(f"--predict_file={folder}/squad.json", "--do_predict"),
      *("--doc_stride=4", *EPOCHS),
    ],
    "embeddings": [
      *(f"--train_file={folder}/pairs.tsv", f"--dev_file={folder}/pairs.tsv"),
      *("--text_columns=first,second", *EPOCHS),
    ],
    "masked_lm": [
      *(f"--input_file={folder}/data.tfrecord", "--objective=mlm"),
      *("--num_train_steps=40", "--num_warmup_steps=4", "--train_batch_size=8"),
    ],
  }


@pytest.fixture(scope="module", params=tiny_subword.KINDS)
def place(request, tmp_path_factory):
  """A folder with the exports of five trained models in `exported`."""
  place = tmp_path_factory.mktemp(request.param)
  tiny_subword.write_folder(place / "encoder", request.param, 40)
  write_data(place)
  for task, flags in flags_of(place).items():
    trained = place / task
    commands.succeed(
      *(SCRIPTS[task], *TRAINING, *flags, LENGTH),
      f"--init_checkpoint={place}/encoder",
      f"--output_dir={trained}",
    )
    assert (trained / "eval_results.txt").read_text()
    commands.succeed(
      *("export_model.py", "--format=onnx", f"--model_dir={trained}"),
      f"--export_dir={place}/exported/{task}",
    )
  return place


def texts_of(task):
  """Texts or pairs for a model of a task."""
  if task == "questions":
    return [(QUESTION, text) for text in TEXTS]
  if task == "masked_lm":
    return [(f"{text} <mask> here <mask>", None) for text in TEXTS]
  return [(text, None) for text in TEXTS]


def expected(folder, task):
  """Ids and output of each text from `OnnxModel`."""
  model = OnnxModel(str(folder), engine="onnxruntime")
  _, rows = model.encode_windows(texts_of(task))
  for row in rows:
    ids = np.array(row["input_ids"])
    mask = model.tokenizer.special_ids.mask
    row["masked_lm_positions"] = np.flatnonzero(ids == mask).tolist()
  for row, output in zip(rows, model.run(rows)):
    output = output[0] if isinstance(output, tuple) else output
    size = len(row["input_ids"])
    if task == "questions":
      output = output[:, :size]
    elif task == "tagging":
      output = output[:size]
    elif task == "masked_lm":
      output = output[: len(row["masked_lm_positions"])]
    yield row["input_ids"], output


def check(found, folder, task):
  """Compares ids and outputs with those of `OnnxModel`."""
  wanted = [*expected(folder, task)]
  for (ids, output), (own_ids, own_output) in zip(found, wanted, strict=True):
    assert [*ids] == own_ids
    np.testing.assert_allclose(output, own_output, atol=1e-5)


@parametrize("task", *SCRIPTS)
def test_exports_give_the_same_with_the_tokenizer_of_transformers(place, task):
  transformers = pytest.importorskip("transformers", reason=".[compare]")
  folder = place / "exported" / task
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx")
  names = {each.name for each in session.get_inputs()}
  found = []
  for pair in texts_of(task):
    inputs = dict(tokenizer(*pair, return_tensors="np"))
    ids = inputs["input_ids"]
    if task == "masked_lm":
      masks = np.flatnonzero(ids[0] == tokenizer.mask_token_id)
      inputs["masked_lm_positions"] = masks[np.newaxis]
    assert inputs.keys() == names
    found.append((ids[0].tolist(), session.run(None, inputs)[0][0]))
  check(found, folder, task)


@pytest.mark.skipif(not shutil.which("npm"), reason="needs Node.js")
def test_exports_give_the_same_in_node(place):
  install = javascript_test.INSTALL.split()
  if subprocess.run(install, cwd=place, check=False).returncode:
    pytest.skip("npm cannot install transformers.js")
  texts = json.dumps([[task, texts_of(task)] for task in SCRIPTS])
  (place / "texts.json").write_text(texts, encoding="utf-8")
  mask = OnnxModel(f"{place}/exported/masked_lm").tokenizer.special_ids.mask
  code = IN_NODE.replace("MASK", str(mask))
  found = json.loads(javascript_test.node(place, code))
  for task in SCRIPTS:
    check(found[task], place / "exported" / task, task)


@parametrize(
  "task, name, least",
  ("tagging", "eval_f1", 1),
  ("questions", "f1", 90),
  ("masked_lm", "masked_lm_accuracy", 0.1),
)
def test_models_have_learnt_their_data(place, task, name, least):
  text = (place / task / "eval_results.txt").read_text()
  (score,) = re.findall(rf"^{name} = ([\d.]+)$", text, re.M)
  assert float(score) >= least


def test_a_killed_run_ends_with_the_same_weights(place):
  """Of a tagger, with dropout, whose texts are tokenized again."""
  command = [
    *(os.path.join(commands.ROOT, "run_ner.py"), *TRAINING, LENGTH),
    *(f"--init_checkpoint={place}/encoder", f"--output_dir={place}/killed"),
    *(*flags_of(place)["tagging"], "--save_checkpoints_steps=20"),
  ]
  process = subprocess.Popen([sys.executable, *command])
  first = place / "killed" / "model.ckpt-20.index"
  commands.wait_until(first.exists, process)
  process.send_signal(signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert not (place / "killed" / "model.ckpt-160.index").exists()
  commands.succeed(*command)
  straight, killed = (
    dict(checkpoint_files.Checkpoint(f"{place}/{name}/model.ckpt-160"))
    for name in ("tagging", "killed")
  )
  assert straight.keys() == killed.keys()
  for name, values in straight.items():
    np.testing.assert_array_equal(values, killed[name])
