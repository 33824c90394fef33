"""Wrong input: text that cannot be read, outputs over inputs, and labels."""

import gzip
import json

import wrong_input_world
from wrong_input_row import Row

LATIN = "the cat sät\tyes\nthe dog ran\tno\n".encode("latin-1")
WORKBOOK = b"PK\x03\x04\x14\0\0\0xl/workbook.xml"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))


def own(name, content, arguments="", rule="labels", file="train.tsv"):
  """A row of the training set of a person's own; `content` is its text."""
  given = "--text_a_column=1 --label_column=2"
  given += f" --train_file={{case}}/{file} {arguments}"
  return Row(rule, name, "run_classifier", given, {file: content})


def other(script, name, content, flag, file="input.txt", arguments=""):
  """A row of another command, whose flag names the file of the case."""
  given = f"--{flag}={{case}}/{file} {arguments}"
  return Row("text", name, script, given, {file: content})


def corpus(name, content, arguments="", file="corpus.txt"):
  return other(
    "create_pretraining_data",
    f"corpus {name}",
    content,
    "input_file",
    file,
    arguments,
  )


TEXT = [
  own("Latin-1", LATIN, rule="text"),
  own("UTF-16", LATIN.decode("latin-1").encode("utf-16"), rule="text"),
  own("PNG", PNG, rule="text"),
  own("JSON lines in Latin-1", b'{"t": "a", "l": "x"}\n{"t": "\xe9"}\n',
      rule="text", file="train.jsonl"),
  own("no such encoding", LATIN, "--encoding=latin-99", rule="text"),
  own("a wrong encoding", LATIN, "--encoding=utf-16", rule="text"),
  corpus("Latin-1", b"the cat\n\nann s\xe4t\n"),
  corpus("Latin-1, workers", b"the cat\n\nann s\xe4t\n", "--num_workers=2"),
  corpus("gzip named .txt", gzip.compress(b"the cat\n", mtime=0)),
  corpus("that is a page", b"<!DOCTYPE html>\n<html></html>\n"),
  corpus("JSON Lines without texts", '{"content": "the cat"}\n',
         file="corpus.jsonl"),
  own("a workbook named .csv", WORKBOOK, rule="text", file="train.csv"),
  own("JSON Lines named .txt", '{"text": "a", "label": "x"}\n', rule="text",
      file="train.txt"),
  other("run_pretraining", "compressed records", gzip.compress(b"a", mtime=0),
        "input_file", "data.tfrecord.gz"),
  other("extract_features", "objects of JSON", '{"text": "a"}\n',
        "input_file"),
  other("run_classifier", "a vocabulary in JSON", '{"[PAD]": 0}\n',
        "vocab_file", "vocab.txt"),
  corpus("incomplete gzip", gzip.compress(bytes(999))[:-9],
         file="corpus.txt.gz"),
  corpus("UTF-16 without a mark", "the cat\n".encode("utf-16-le")),
  corpus("cut within a character", "the cat\n中".encode()[:-1]),
  other("create_vocab", "learning from Latin-1", b"s\xe9t\n", "input_file"),
  other("extract_features", "features of Latin-1", b"cat\ns\xe4t\n",
        "input_file"),
  other("run_ner", "tags in Latin-1", b"s\xe4t O\n", "train_file"),
  other("run_squad", "questions in Latin-1", b'{"data": "\xe9"}', "train_file"),
  other("run_pretraining", "masks in Latin-1", b"the [MASK] s\xe4t\n",
        "predict_file", "lines.txt", "--do_predict"),
  other("run_classifier", "a config in UTF-16", "{}".encode("utf-16"),
        "bert_config_file", "bert_config.json"),
  other("run_classifier", "a vocabulary in Latin-1", b"[PAD]\n[UNK]\n\xe9\n",
        "vocab_file", "vocab.txt"),
  Row("text", "standard input in Latin-1", "extract_features",
      "--input_file=-", stdin=b"a\n\xe9\n"),
]  # fmt: skip

_BY_NAME = "--text_a_column=text --label_column=label "
LABELS = [
  own("a space", "a\tx\nb\t\u00a0\nc\ty\n"),
  own("a single one", "a\tx\nb\tx\nc\tx \n"),
  own("numbers and text that are one",
      '{"t": "a", "l": 1}\n{"t": "b", "l": "1"}\n', file="train.jsonl"),
  own("a column too few", "a\tx\tz\nb\ty\n"),
  own("--labels with one twice", "a\tx\nb\ty\n", "--labels=x,y,x"),
]  # fmt: skip


def table(name, content, arguments="", file="train.tsv", rule="tables"):
  """A row of a table whose columns are given by name."""
  return own(name, content, _BY_NAME + arguments, rule, file)


def to_predict(name, file, content, arguments=""):
  return Row(
    "tables",
    name,
    "run_classifier",
    "--nodo_train --do_predict --output_dir={world}/trained --labels=no,yes"
    f" --predict_file={{case}}/{file} {arguments}",
    {file: content},
  )


TABLES = [
  own("a header, columns by number", "text\tlabel\na\tx\nb\ty\n",
      rule="tables"),
  table("a header again", "text\tlabel\na\tx\ntext\tlabel\nb\ty\n"),
  table("a position beside names that are numbers",
        "0\t1\na\tx\nb\ty\n", "--text_a_column=0 --label_column=2"),
  own("semicolons", "text;label\na;x\nb;y\n", rule="tables",
      file="train.csv"),
  table("two characters between columns", "text;label\na;x\nb;y\n",
        "--delimiter=;;"),
  *(
    table(f"columns of labels, {name}", f"text,x,y\na,1,0\nb,{row}\n",
          f"--problem_type={arguments}", "train.csv")
    for name, row, arguments in [
      ("another value", "0,2", "multi_label --label_column=x,y"),
      ("one not there", "0,1", "multi_label --label_column=x,z"),
      ("one alone", "0.0,1", "multi_label --label_column=x"),
      ("other --labels", "0,1", "multi_label --label_column=x,y --labels=x,z"),
      ("no names", "0,1", "multi_label --text_a_column=1 --label_column=2,3"),
      ("one label per text", "0,1", "classification --label_column=x,y"),
    ]
  ),
  table("a quoted line break in .tsv", 'text\tlabel\na\tx\n"b\nc"\ty\n'),
  table("a quote after a backslash", 'text,label\n"a \\"b\\" c",x\nd,y\n',
        file="train.csv"),
  table("a row after line breaks in cells", 'text,label\n"a\nb",x\nc\n',
        file="train.csv"),
  table("a list without quotes", "text\tlabel\na\t[x, y]\nb\ty\n",
        "--problem_type=multi_label"),
  table("a vector without --labels", "text\tlabel\na\tx\nb\t0 1 0\n",
        "--problem_type=multi_label"),
  table("a list as a label", "text\tlabel\na\tx\nb\t['y']\n"),
  table("a list as a text", '{"text": ["a"], "label": "x"}\n',
        file="train.jsonl"),
  table("a number beyond float32", "text\tlabel\na\t2\nb\t1e300\n",
        "--problem_type=regression"),
  *(
    table(name, f"text\tlabel\na\t{label}\nb\t{label}\n",
          f"--problem_type={kind}", rule="nothing to learn")
    for name, label, kind in [
      ("equal numbers", "2.5", "regression"),
      ("equal sets of labels", "x,y", "multi_label"),
      ("no labels", "", "multi_label --labels=x,y"),
    ]
  ),
  table("an id twice", "text\tlabel\tid\na\tx\t7\nb\ty\t7\n", "--id_column=id"),
  Row("tables", "an id column of a published task", "run_classifier",
      "--task_name=mrpc --data_dir={world}/mrpc --id_column=2"),
  to_predict("ids of lines", "a.txt", "the cat\n", "--id_column=id"),
  to_predict("objects of JSON without a name", "a.jsonl", '{"text": "a"}\n'),
  to_predict("a line with two tabs", "a.txt", "the\tcat\tsat\n"),
  to_predict("a table without the column", "a.csv", "id,texts\n7,the cat\n",
             "--text_a_column=text"),
]  # fmt: skip

TAGS = [
  Row("tags", name, "run_ner",
      f"--train_file={{case}}/{file} --train_batch_size=1", {file: content})
  for name, file, content in [
    ("a space", "n.conll", "ann\tB-PER\nwent\t\u00a0\n"),
    ("a bare type among others", "n.conll", "ann B-PER\n\nbob PER\n"),
    ("another scheme", "n.conll", "ann B-PER\nlee X-PER\n"),
    ("two in a word", "n.conll", "ann B-PER|B-LOC\nwent O\n"),
    ("no column of tags", "n.conll", "ann\nwent\n"),
    ("comments only", "n.conll", "# text = ann\n"),
    ("JSON as columns", "n.json", '{"tokens": ["ann"], "tags": ["O"]}\n'),
    ("a space in the word", "n.conll", "ann B-PER\nnew york O\n"),
    ("no entity", "n.conll", "ann O\n\nbob O\n"),
    ("numbers", "n.jsonl", '{"tokens": ["ann"], "tags": [1]}\n'),
    ("another key", "n.jsonl", '{"tokens": ["ann"], "ner_tags": ["O"]}\n'),
    ("labels of doccano", "n.jsonl",
     '{"text": "ann", "label": [[0, 3, "PER"]]}\n'),
    ("half of a character", "n.jsonl", '{"text": "\\ud83d", "entities": []}\n'),
    ("an empty entity", "n.jsonl",
     '{"text": "ann", "entities": [{"start": 0, "end": 3, "label": " "}]}\n'),
    ("as types of entities", "n.jsonl",
     '{"text": "ann lee", "entities": ['
     '        {"start": 0, "end": 3, "label": "B-PER"},'
     '        {"start": 4, "end": 7, "label": "I-PER"}]}'),
  ]
]  # fmt: skip
TAGS.append(
  Row(
    "tags",
    "sentences instead of words",
    "run_ner",
    "--do_predict --predict_file={case}/n.txt",
    {"n.txt": "ann went\nbob sat\n"},
  )
)


def asked(answers, context="ann went to rome .", id_=4711, **more):
  qas = [{"id": id_, "question": "who ?", "answers": answers} | more]
  return json.dumps(
    {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
  )


QUESTIONS = [
  Row("questions", name, "run_squad",
      f"--train_file={{case}}/q.json {arguments}", {"q.json": content})
  for name, content, arguments in [
    ("an id that is a list", asked([], id_=[1]), ""),
    ("a blank context", asked([{"text": "a", "answer_start": 0}], "  "), ""),
    ("an empty answer", asked([{"text": " ", "answer_start": 3}]), ""),
    ("no answer_start", asked([{"text": "ann"}]), ""),
    ("a negative answer_start",
     asked([{"text": "ann", "answer_start": -1}]), ""),
    ("an answer beyond the text",
     asked([{"text": "rome .", "answer_start": 13}]), ""),
    ("no answers", asked([]), ""),
    ("no answers and not impossible", asked([], is_impossible=False),
     "--version_2_with_negative"),
    ("no question with an answer", asked([], is_impossible=True),
     "--version_2_with_negative"),
  ]
]  # fmt: skip

OVERWRITING = [
  Row("output over input", name, script, arguments,
      {file: content} if file else {})
  for name, script, arguments, file, content in [
    ("corpus, workers", "create_pretraining_data",
     "--input_file={case}/*.txt --output_file={case}/../case/a.txt"
     " --num_workers=2", "a.txt", "the cat\n"),
    ("corpus, a shard", "create_pretraining_data",
     "--input_file={case}/a* --output_file={case}/a --num_shards=2",
     "a-00001-of-00002", "the cat\n"),
    ("corpus, the receipt", "create_pretraining_data",
     "--input_file={case}/a.run.json --output_file={case}/a",
     "a.run.json", "the cat\n"),
    ("vocabulary of the records", "create_pretraining_data",
     "--output_file={world}/vocab.txt", None, None),
    ("vocabulary learned", "create_vocab",
     "--input_file={case}/a.txt --output_file={case}/./a.txt",
     "a.txt", "the cat\n"),
    ("features", "extract_features",
     "--input_file={case}/a.txt --output_file={case}/a.txt",
     "a.txt", "the cat\n"),
    ("features over the checkpoint", "extract_features",
     "--output_file={world}/model.ckpt.index", None, None),
    ("scores", "squad_metrics", "--out-file={world}/answers.json", None, None),
    ("texts to label", "run_classifier",
     "--predict_file={case}/test_results.tsv --do_predict"
     " --output_dir={case} --text_a_column=1 --label_column=2"
     " --train_file=train.tsv", "test_results.tsv", "the cat\n"),
    ("sentences to tag", "run_ner",
     "--predict_file={case}/test_predictions.conll --do_predict"
     " --output_dir={case}", "test_predictions.conll", "ann\n"),
    ("questions", "run_squad",
     "--train_file={case}/predictions.json --output_dir={case}",
     "predictions.json", "{}"),
    ("logits", "run_squad", "--save_logits={world}/squad.json", None, None),
    ("masks to fill", "run_pretraining",
     "--predict_file={case}/predictions.jsonl --do_predict"
     " --output_dir={case}", "predictions.jsonl", "the [MASK]\n"),
  ]
]  # fmt: skip

INDEX = '{"weight_map": {"bert.a": %s}}'
SHARDS = [
  Row(
    "shard index",
    name,
    "convert_checkpoint",
    "--input={case}",
    {
      "model.safetensors.index.json": content,
      "config.json": wrong_input_world.config(),
      "vocab.txt": "[PAD]\n",
    },
  )
  for name, content in [
    ("absolute", INDEX % '"/etc/passwd"'),
    ("missing", INDEX % '"a.safetensors"'),
    ("itself", INDEX % '"model.safetensors.index.json"'),
    ("a number", INDEX % "7"),
    ("no files", '{"weight_map": {}}'),
  ]
]

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
FOREIGN = [
  Row(
    "foreign model", name, "convert_checkpoint", f"--input={{case}}/{path}", of
  )
  for name, path, of in [
    ("an adapter", "", {"adapter_config.json": "{}"}),
    ("ALBERT", "", {"config.json": '{"model_type": "albert"}'}),
    (
      "by its class",
      "",
      {"config.json": '{"architectures": ["RobertaModel"]}'},
    ),
    ("a pointer of Git LFS", "", {"config.json": POINTER}),
    ("a file of weights", "model.safetensors", {"model.safetensors": b""}),
  ]
]

ROWS = [*TEXT, *LABELS, *TABLES, *TAGS, *QUESTIONS, *OVERWRITING, *SHARDS]
ROWS += FOREIGN
