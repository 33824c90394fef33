"""Wrong input: text that cannot be read, outputs over inputs, and labels."""

import gzip
import json
import os

from wrong_input_row import Row

LATIN = "the cat sät\tyes\nthe dog ran\tno\n".encode("latin-1")
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))


def own(name, content=None, **more):
  """A row of the training set of a person's own; `content` is its text."""
  rule = more.pop("rule", "labels")
  file = more.pop("file", "train.tsv")
  arguments = ["--text_a_column=1", "--label_column=2"]
  arguments += [f"--train_file={{case}}/{file}", *more.pop("arguments", ())]
  more.setdefault("error", f"{{case}}/{file}, row ")
  return Row(
    rule, name, "run_classifier", arguments, files={file: content}, **more
  )


def pretraining(name, content, *arguments, **more):
  file = more.pop("file", "corpus.txt")
  more.setdefault("error", f"{{case}}/{file}, line ")
  return Row(
    "text",
    f"corpus {name}",
    "create_pretraining_data",
    [f"--input_file={{case}}/{file}", *arguments],
    files={file: content},
    **more,
  )


def other(script, name, content, flag, file="input.txt", *arguments, **more):
  """A row of another command, whose flag names the file of the case."""
  if script == "extract_features":
    arguments = ("--layers=-1", *arguments)
  more.setdefault("error", f"{{case}}/{file}, line ")
  given = [f"--{flag}={{case}}/{file}", *arguments]
  return Row("text", name, script, given, files={file: content}, **more)


_NER_OF_ONE = ("--train_batch_size=1",)

TEXT = [
  own(
    "Latin-1",
    LATIN,
    rule="text",
    error="{case}/train.tsv, line 1, byte 10: ",
  ),
  own("UTF-16", LATIN.decode("latin-1").encode("utf-16"), rule="text",
      error="{case}/train.tsv, line 1, byte 1: "),
  own("PNG", PNG, rule="text", error="{case}/train.tsv, line 1, byte 1: "),
  own("CSV in Latin-1", b'"a\xe9",x\nb,y\n', rule="text", file="train.csv",
      error="{case}/train.csv, line 1, byte 3: "),
  own("JSON lines in Latin-1", b'{"t": "a", "l": "x"}\n{"t": "\xe9"}\n',
      rule="text", file="train.jsonl",
      error="{case}/train.jsonl, line 2, byte 8: "),
  own("no such encoding", LATIN, rule="text", error="--encoding",
      arguments=["--encoding=latin-99"]),
  own("not an encoding of text", LATIN, rule="text", error="--encoding",
      arguments=["--encoding=base64"]),
  own("a wrong encoding", LATIN, rule="text",
      error="{case}/train.tsv: is not UTF-16",
      arguments=["--encoding=utf-16"]),
  pretraining("Latin-1", b"the cat\n\nann s\xe4t\n",
              error="{case}/corpus.txt, line 3, byte 6: "),
  pretraining("Latin-1, workers", b"the cat\n\nann s\xe4t\n",
              "--num_workers=2", error="{case}/corpus.txt, line 3, byte 6: "),
  pretraining("gzip named .txt", gzip.compress(b"the cat\n")),
  pretraining("PNG", PNG),
  pretraining("incomplete gzip", gzip.compress(os.urandom(999))[:-9],
              file="corpus.txt.gz", error="{case}/corpus.txt.gz"),
  pretraining("UTF-16 without a mark", "the cat\n".encode("utf-16-le")),
  pretraining("cut within a character", "the cat\n中".encode()[:-1]),
  other("create_vocab", "learning from Latin-1", b"s\xe9t\n", "input_file"),
  other("create_vocab", "learning from UTF-16", "cat".encode("utf-16"),
        "input_file"),
  other("extract_features", "features of UTF-16", "cat".encode("utf-16"),
        "input_file"),
  other("extract_features", "features of Latin-1", b"cat\ns\xe4t\n",
        "input_file", error="{case}/input.txt, line 2, byte 2: "),
  other("run_ner", "tags in Latin-1", b"s\xe4t O\n", "train_file"),
  other("run_ner", "tags in JSON lines of GB18030",
        '{"text": "今天天气很好"}\n'.encode("gb18030"),
        "train_file", "train.jsonl"),
  other("run_squad", "questions in Latin-1", b'{"data": "\xe9"}', "train_file"),
  other("run_squad", "a passage that is a PNG", PNG, "passage_file",
        "passage.txt", "--interactive"),
  other("run_pretraining", "masks in Latin-1", b"the [MASK] s\xe4t\n",
        "predict_file", "lines.txt", "--do_predict"),
  other("run_classifier", "a config in UTF-16", "{}".encode("utf-16"),
        "bert_config_file", "bert_config.json",
        error="{case}/bert_config.json"),
  other("run_classifier", "a vocabulary in Latin-1", b"[PAD]\n[UNK]\n\xe9\n",
        "vocab_file", "vocab.txt", error="{case}/vocab.txt"),
  other("create_pretraining_data", "a vocabulary that is a PNG", PNG,
        "vocab_file", "vocab.txt", error="{case}/vocab.txt"),
  Row("text", "standard input in Latin-1", "extract_features",
      ["--input_file=-", "--layers=-1"], "standard input, line 2",
      stdin=b"a\n\xe9\n"),
]  # fmt: skip

LABELS = [
  own("empty", "a\tx\nb\t\nc\ty\n", error="{case}/train.tsv, row 2"),
  own("a space", "a\tx\nb\t\u00a0\nc\ty\n", error="{case}/train.tsv, row 2"),
  own("a single one", "a\tx\nb\tx\nc\tx \n", error="{case}/train.tsv"),
  own("numbers and text that are one",
      '{"t": "a", "l": 1}\n{"t": "b", "l": "1"}\n',
      file="train.jsonl", error="{case}/train.jsonl"),
  own("a tab in the text", "text\tlabel\na\tx\nb\tsome\tx\nc\ty\n",
      error="{case}/train.tsv, row 3",
      arguments=["--text_a_column=text", "--label_column=label"]),
  own("a comma in the text", "a,x\nb, and c,y\n", file="train.csv",
      error="{case}/train.csv, row 2"),
  own("a column too few", "a\tx\tz\nb\ty\n", error="{case}/train.tsv, row 2"),
  own("--labels with one", "a\tx\nb\ty\n", error="--labels",
      arguments=["--labels=x"]),
  own("--labels with one twice", "a\tx\nb\ty\n", error="--labels",
      arguments=["--labels=x,y,x"]),
]  # fmt: skip

_BY_NAME = ["--text_a_column=text", "--label_column=label"]


def table(name, content, *arguments, file="train.tsv", row=1, **more):
  """A row of a table whose columns are given by name."""
  return own(
    name,
    content,
    rule="tables",
    file=file,
    error=f"{{case}}/{file}, row {row}",
    arguments=[*_BY_NAME, *arguments],
    **more,
  )


def to_predict(name, file, content, *arguments, **more):
  """A row of a file with texts to classify."""
  more.setdefault("error", f"{{case}}/{file}, row ")
  return Row(
    "tables",
    name,
    "run_classifier",
    [
      "--nodo_train",
      "--do_predict",
      "--output_dir={world}/trained",
      "--labels=no,yes",
      f"--predict_file={{case}}/{file}",
      *arguments,
    ],
    files={file: content},
    **more,
  )


TABLES = [
  own("a header, columns by number", "text\tlabel\na\tx\nb\ty\n",
      rule="tables", error="{case}/train.tsv, row 1: "),
  table("a header again", "text\tlabel\na\tx\ntext\tlabel\nb\ty\n", row=3),
  table("a position beside names that are numbers",
        "0\t1\na\tx\nb\ty\n", "--text_a_column=0", "--label_column=2"),
  table("semicolons", "text;label\na;x\nb;y\n", file="train.csv"),
  table("a quoted line break in .tsv",
        'text\tlabel\na\tx\n"b\nc"\ty\n', row=3),
  table("a quote after a backslash", 'text,label\n"a \\"b\\" c",x\nd,y\n',
        file="train.csv", row=2),
  table("a row after line breaks in cells", 'text,label\n"a\nb",x\nc\n',
        file="train.csv", row="3 (line 4)"),
  own("white space as JSON lines", " \n", rule="tables", file="train.jsonl",
      error="{case}/train.jsonl: is empty"),
  table("a list without quotes", "text\tlabel\na\t[x, y]\nb\ty\n",
        "--problem_type=multi_label", row=2),
  table("a vector without --labels", "text\tlabel\na\tx\nb\t0 1 0\n",
        "--problem_type=multi_label", row=3),
  table("a list as a label", "text\tlabel\na\tx\nb\t['y']\n", row=3),
  table("a list as a text", '{"text": ["a"], "label": "x"}\n',
        file="train.jsonl"),
  table("a number with an underscore", "text\tlabel\na\t2\nb\t1_000\n",
        "--problem_type=regression", row=3),
  table("a number beyond float32", "text\tlabel\na\t2\nb\t1e300\n",
        "--problem_type=regression", row=3),
  *(
    own(name, f"text\tlabel\na\t{label}\nb\t{label}\n",
        rule="nothing to learn", error="{case}/train.tsv: all 2 examples",
        arguments=[*_BY_NAME, f"--problem_type={kind}", *more])
    for name, label, kind, more in [
      ("equal numbers", "2.5", "regression", []),
      ("equal sets of labels", "x,y", "multi_label", []),
      ("no labels", "", "multi_label", ["--labels=x,y"]),
    ]
  ),
  table("an id twice", "text\tlabel\tid\na\tx\t7\nb\ty\t7\n",
        "--id_column=id", row=3),
  Row("tables", "an id column of a published task", "run_classifier",
      ["--task_name=mrpc", "--data_dir={world}/mrpc", "--id_column=2"],
      "--id_column=2: "),
  to_predict("ids of lines", "a.txt", "the cat\n", "--id_column=id",
             error="--predict_file={case}/a.txt: "),
  to_predict("objects of JSON without a name", "a.jsonl", '{"text": "a"}\n',
             error="--predict_file={case}/a.jsonl: "),
  to_predict("a line with two tabs", "a.txt", "the\tcat\tsat\n"),
  to_predict("a table without the column", "a.csv", "id,texts\n7,the cat\n",
             "--text_a_column=text"),
]  # fmt: skip

TAGS = [
  Row("tags", name, "run_ner",
      [f"--train_file={{case}}/{file}", *_NER_OF_ONE],
      f"{{case}}/{file}" + (f", line {line}" if line else ""),
      files={file: content})
  for name, file, line, content in [
    ("empty", "n.conll", 2, "ann\tB-PER\nwent\t\n"),
    ("a space", "n.conll", 2, "ann\tB-PER\nwent\t\u00a0\n"),
    ("lower case", "n.conll", 3, "ann B-PER\nwent O\nrome b-loc\n"),
    ("lower-case o", "n.conll", 2, "ann B-PER\nwent o\n"),
    ("a bare type among others", "n.conll", 3, "ann B-PER\n\nbob PER\n"),
    ("no type", "n.conll", 1, "ann B-\nwent O\n"),
    ("another scheme", "n.conll", 2, "ann B-PER\nlee X-PER\n"),
    ("underscores without I_", "n.conll", 1, "ann B_PER\nwent O\n"),
    ("brackets", "n.conll", 1, "ann (PER*)\nwent *\n"),
    ("two in a word", "n.conll", 1, "ann B-PER|B-LOC\nwent O\n"),
    ("no column of tags", "n.conll", 1, "ann\nwent\n"),
    ("comments", "n.conll", 1, "# text = ann\n1\tann\tO\n"),
    ("JSON as columns", "n.json", None, '{"tokens": ["ann"], "tags": ["O"]}\n'),
    ("a space in the word", "n.conll", 2, "ann B-PER\nnew york O\n"),
    ("in rows, empty", "n.jsonl", 1,
     '{"tokens": ["ann", "b"], "tags": ["B-PER", ""]}\n'),
    ("no entity", "n.conll", None, "ann O\n\nbob O\n"),
    ("numbers", "n.jsonl", 1, '{"tokens": ["ann"], "tags": [1]}\n'),
    ("another key", "n.jsonl", 1, '{"tokens": ["ann"], "ner_tags": ["O"]}\n'),
    ("labels of doccano", "n.jsonl", 1,
     '{"text": "ann", "label": [[0, 3, "PER"]]}\n'),
    ("half of a character", "n.jsonl", 1,
     '{"text": "\\ud83d", "entities": []}\n'),
    ("an empty entity", "n.jsonl", 1,
     '{"text": "ann", "entities": [{"start": 0, "end": 3, "label": " "}]}\n'),
  ]
] + [
  Row("tags", "as types of entities", "run_ner",
      ["--train_file={case}/n.jsonl", *_NER_OF_ONE], "{case}/n.jsonl",
      files={"n.jsonl": """{"text": "ann lee", "entities": [
        {"start": 0, "end": 3, "label": "B-PER"},
        {"start": 4, "end": 7, "label": "I-PER"}]}""".replace("\n", "")}),
  Row("tags", "sentences instead of words", "run_ner",
      ["--do_predict", "--predict_file={case}/n.txt"],
      "{case}/n.txt, line 1",
      files={"n.txt": "ann went\nbob sat\n"}),
]  # fmt: skip


def asked(answers, context="ann went to rome .", id_=4711, **more):
  """A data set of one question."""
  qas = [{"id": id_, "question": "who ?", "answers": answers} | more]
  return json.dumps(
    {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
  )


_IN_PARAGRAPH = ", article 1, paragraph 1, question 1: "
QUESTIONS = [
  Row("questions", name, "run_squad",
      ["--train_file={case}/q.json", *arguments],
      f"{{case}}/q.json{where}", files={"q.json": content})
  for name, where, content, arguments in [
    ("an id that is a list", _IN_PARAGRAPH, asked([], id_=[1]), ()),
    ("a blank context", ": ", asked([{"text": "a", "answer_start": 0}], "  "),
     ()),
    ("an empty context", ", question 4711: ",
     asked([{"text": "a", "answer_start": 0}], ""), ()),
    ("an empty answer", ", question 4711: ",
     asked([{"text": " ", "answer_start": 3}]), ()),
    ("no answer_start", ", question 4711: ", asked([{"text": "ann"}]), ()),
    ("a negative answer_start", ", question 4711: ",
     asked([{"text": "ann", "answer_start": -1}]), ()),
    ("an answer beyond the text", ", question 4711: ",
     asked([{"text": "rome .", "answer_start": 13}]), ()),
    ("no answers", ", question 4711: ", asked([]), ()),
    ("no answers and not impossible", ", question 4711: ",
     asked([], is_impossible=False), ["--version_2_with_negative"]),
    ("no question with an answer", ": none of its 1 questions",
     asked([], is_impossible=True), ["--version_2_with_negative"]),
  ]
]  # fmt: skip

OVERWRITING = [
  Row("output over input", name, script, arguments, error, files=files)
  for name, script, arguments, error, files in [
    ("corpus", "create_pretraining_data",
     ["--input_file={case}/a.txt", "--output_file={case}/a.txt"],
     "{case}/a.txt", {"a.txt": "the cat\n"}),
    ("corpus, workers", "create_pretraining_data",
     ["--input_file={case}/*.txt", "--output_file={case}/../case/a.txt",
      "--num_workers=2"], "a.txt", {"a.txt": "the cat\n"}),
    ("corpus, a shard", "create_pretraining_data",
     ["--input_file={case}/a*", "--output_file={case}/a", "--num_shards=2"],
     "{case}/a-00001-of-00002", {"a-00001-of-00002": "the cat\n"}),
    ("corpus, the receipt", "create_pretraining_data",
     ["--input_file={case}/a.run.json", "--output_file={case}/a"],
     "{case}/a.run.json", {"a.run.json": "the cat\n"}),
    ("vocabulary of the records", "create_pretraining_data",
     ["--output_file={world}/vocab.txt"], "{world}/vocab.txt", {}),
    ("vocabulary learned", "create_vocab",
     ["--input_file={case}/a.txt", "--output_file={case}/./a.txt"],
     "a.txt", {"a.txt": "the cat\n"}),
    ("features", "extract_features",
     ["--input_file={case}/a.txt", "--output_file={case}/a.txt"],
     "{case}/a.txt", {"a.txt": "the cat\n"}),
    ("features over the checkpoint", "extract_features",
     ["--output_file={world}/model.ckpt.index"], "{world}/model.ckpt.index",
     {}),
    ("scores", "squad_metrics", ["--out-file={world}/answers.json"],
     "{world}/answers.json", {}),
    ("texts to label", "run_classifier",
     ["--predict_file={case}/test_results.tsv", "--do_predict",
      "--output_dir={case}", "--text_a_column=1", "--label_column=2",
      "--train_file=train.tsv"],
     "{case}/test_results.tsv", {"test_results.tsv": "the cat\n"}),
    ("sentences to tag", "run_ner",
     ["--predict_file={case}/test_predictions.conll", "--do_predict",
      "--output_dir={case}"], "{case}/test_predictions.conll",
     {"test_predictions.conll": "ann\n"}),
    ("questions", "run_squad",
     ["--train_file={case}/predictions.json", "--output_dir={case}"],
     "{case}/predictions.json", {"predictions.json": "{}"}),
    ("logits", "run_squad", ["--save_logits={world}/squad.json"],
     "{world}/squad.json", {}),
    ("masks to fill", "run_pretraining",
     ["--predict_file={case}/predictions.jsonl", "--do_predict",
      "--output_dir={case}"], "{case}/predictions.jsonl",
     {"predictions.jsonl": "the [MASK]\n"}),
  ]
]  # fmt: skip

INDEX = '{"weight_map": {"bert.a": %s}}'
SHARDS = [
  Row("shard index", name, "convert_checkpoint", ["--input={case}"],
      "{case}/model.safetensors.index.json",
      files={"model.safetensors.index.json": content, "config.json":
             '{"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 2,'
             ' "num_attention_heads": 2, "intermediate_size": 16,'
             ' "hidden_act": "gelu", "hidden_dropout_prob": 0.1,'
             ' "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,'
             ' "max_position_embeddings": 32, "type_vocab_size": 2}',
             "vocab.txt": "[PAD]\n"})
  for name, content in [
    ("above", INDEX % '"../secret.safetensors"'),
    ("absolute", INDEX % '"/etc/passwd"'),
    ("missing", INDEX % '"a.safetensors"'),
    ("itself", INDEX % '"model.safetensors.index.json"'),
    ("a number", INDEX % "7"),
    ("a list", '{"weight_map": ["a"]}'),
    ("no files", '{"weight_map": {}}'),
  ]
]  # fmt: skip

ROWS = [*TEXT, *LABELS, *TABLES, *TAGS, *QUESTIONS, *OVERWRITING, *SHARDS]
