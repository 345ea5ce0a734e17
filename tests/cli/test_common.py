"""What the commands share: a user's own questions, where results go, correct answers, and words."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from shadowprice.cli import common, main
from shadowprice.errors import InputError
from shadowprice.formats.traces import read_traces

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..talking import talks

COMMAND = [sys.executable, "-m", "shadowprice"]
CSV = 'question,answer,grader\n"Say word,\nplease.",word,exact\nSay bird,bird,exact\n'
FORMS = {
    "q.csv": CSV,
    "q.tsv": CSV.replace(",answer,", "\tanswer\t").replace(",word,", "\tword\t").replace(",bird,", "\tbird\t"),
    "q.jsonl": "".join(
        json.dumps({"problem": q, "gold": a, "grader": "exact"}) + "\n"
        for q, a in [("Say word,\nplease.", "word"), ("Say bird", "bird")]
    ),
}
FORMS["q.tsv"] = FORMS["q.tsv"].replace("answer,grader", "answer\tgrader").replace(",exact", "\texact")


def command(*arguments) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server():
    with hostile.Server(talks(1)) as running:
        yield running


def write(name: str, content: str | bytes) -> str:
    with open(name, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return name


def completion(text: str) -> dict:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


class TestTheSameFileForEveryCommand:
    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
    @pytest.mark.parametrize("name", FORMS)
    def test_questions_with_answers(self, name, packed, server, inside, capsys):
        content = FORMS[name].encode()
        path = write(f"{name}.gz", gzip.compress(content)) if packed else write(name, content)
        assert command("plan", path, "--budget", "2k", "--out", "plan.jsonl") == 0
        assert f"2 questions from {path}: " in capsys.readouterr().err
        assert command("forecast", path, "--out", "forecast.jsonl") == 0
        assert (
            command("run", path, "--budget", "2k", "--base-url", server.url, "--model", "m", "--out", "run.jsonl") == 0
        )
        assert "correct    1 of" in capsys.readouterr().out
        where = ["--base-url", server.url, "--model", "m", "--max-tokens", 9]
        assert command("collect", path, "--out", "traces.jsonl", *where) == 0

        planned, forecasts, answers = (read_jsonl(inside / f"{each}.jsonl") for each in ("plan", "forecast", "run"))
        traces = list(read_traces("traces.jsonl"))
        ids = [line["custom_id"] for line in planned]
        assert ids == [line["custom_id"] for line in forecasts] == [line["custom_id"] for line in answers]
        assert ids == [trace.id for trace in traces]
        assert [line["body"]["messages"][0]["content"] for line in planned] == ["Say word,\nplease.", "Say bird"]
        assert [line["shadowprice"]["correct"] for line in answers] == [True, False]
        assert [(trace.correct, trace.gold) for trace in traces] == [(True, "word"), (False, "bird")]

    def test_answers_in_sentences_are_graded_by_what_the_correct_ones_look_like(self, inside, capsys):
        rows = {
            "What is 2+2?": ("4", "2 + 2 equals 4.", True),
            "Name the capital of France.": ("Paris", "The capital of France is Paris.", True),
            "Name the capital of Italy.": ("Rome", "The capital of Italy is Milan.", False),
            "Is 7 prime?": ("yes", "Yes, it is.", True),
            "Which one? (A) 3 (B) 4": ("B", "The correct option is (B) 4.", True),
            "Which one? (A) 4 (B) 5": ("A", "B) 5", False),
            "What does it cost?": ("18 dollars", "It costs $18.", True),
            "Which list?": ("[1, 2]", "[1,2]", True),
        }

        async def answers(request, reply):
            await reply.json(200, completion(rows[request.body["messages"][-1]["content"]][1]))

        lines = "".join(json.dumps({"question": q, "answer": gold}) + "\n" for q, (gold, *_) in rows.items())
        with hostile.Server(answers) as server:
            where = ["--base-url", server.url, "--model", "m", "--policy", "uniform"]
            assert command("run", write("q.jsonl", lines), "--budget", "2k", "--out", "a.jsonl", *where) == 0
        graded = [line["shadowprice"]["correct"] for line in read_jsonl(inside / "a.jsonl")]
        assert graded == [correct for *_, correct in rows.values()]
        printed = capsys.readouterr()
        assert "answer -> gold (math, words, choice, numeric)" in printed.err
        assert "correct    6 of 8 graded" in printed.out

    def test_lines_of_text_and_batch_files_have_no_answers(self, server, batch):
        for path in (write("q.txt", "Why?\nHow?\n"), batch([request_line("a"), request_line("b", n=3)])):
            assert command("plan", path, "--budget", "9k", "--out", "p", "--force") == 0
            assert command("forecast", path, "--out", "f", "--force") == 0
            where = ["--base-url", server.url, "--model", "m", "--max-tokens", 9, "--force", "--run-folder"]
            assert command("collect", path, "--out", "t", *where, f"{path}.run") == 0
            assert [trace.correct for trace in read_traces("t")] == [None, None]

    def test_how_many_requests_a_batch_file_has_is_printed_and_where_they_go(self, batch, server, capsys):
        path = batch([request_line("a"), request_line("b")])
        more = ["--budget", "9k", "--out", "-", "--errors", os.devnull]
        where = ["--base-url", server.url, "--model", "m"]
        for name, line in (("plan", "  admitted  2 requests, "), ("run", "  answered   2 requests, ")):
            assert command(name, path, *more, *(where if name == "run" else [])) == 0
            printed = capsys.readouterr().err.splitlines()
            assert printed[0] == f"2 requests from {path} (OpenAI Batch)"
            assert next(each for each in printed if each.startswith(line)).endswith(" -> standard output")

    def test_standard_input_is_recognised_by_its_content(self, inside):
        for content in (FORMS["q.csv"], FORMS["q.jsonl"], "Say word, please.\nSay bird\n"):
            done = subprocess.run(
                [*COMMAND, "plan", "-", "--budget", "2k", "--out", "-", "--errors", "/dev/null"],
                input=content.encode(), capture_output=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0
            assert [json.loads(line)["body"]["messages"][0]["content"][:8] for line in done.stdout.splitlines()] == [
                "Say word",
                "Say bird",
            ]
            assert b"2 questions from standard input: " in done.stderr

    def test_quiet_says_nothing_about_it(self, capsys):
        assert command("plan", write("q.csv", CSV), "--budget", "2k", "--quiet") == 0
        assert capsys.readouterr().err == ""

    def test_an_instruction_and_a_system_message(self, server, inside):
        template = write("template.txt", "Think of {question} and answer.\n")
        more = ["--prompt-template", template, "--system", "Be brief.", "--quiet"]
        where = ["--base-url", server.url, "--model", "m"]
        path = write("q.csv", CSV)
        assert (
            command("plan", path, "--budget", "2k", "--out", "plan.jsonl", "--model", "m", "--to", "batch", *more) == 0
        )
        assert command("run", path, "--budget", "2k", *where, *more) == 0
        assert command("collect", path, "--out", "t", "--max-tokens", 9, *where, *more) == 0
        chat = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Think of Say bird and answer."},
        ]
        assert read_jsonl(inside / "plan.jsonl")[1]["body"]["messages"] == chat
        assert read_jsonl(inside / "plan.jsonl")[1]["body"]["model"] == "m"
        assert [request.body["messages"] for request in server.requests].count(chat) == 2
        assert command("forecast", path, "--out", "f", *more) == 0

    def test_a_column_can_be_named(self, inside):
        path = write("q.csv", "text,key\nWhy?,a\n")
        assert command("plan", path, "--budget", "2k") == 2
        assert command("plan", path, "--budget", "2k", "--prompt-field", "text", "--id-field", "KEY") == 0
        assert read_jsonl(inside / "q.planned.jsonl")[0]["custom_id"] == "a"

    def test_an_integer_id_stays_as_it_is_and_is_mentioned(self, batch, inside, capsys):
        path = batch([{**request_line("a"), "custom_id": 7}])
        assert command("plan", path, "--budget", "2k") == 0
        assert read_jsonl(inside / "requests.planned.jsonl")[0]["custom_id"] == 7
        assert "custom_id is a number" in capsys.readouterr().err


class TestOutputs:
    def refused(self, capsys, *arguments) -> str:
        assert command(*arguments) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1, shown
        return shown

    def test_what_exists_is_replaced_only_on_request(self, inside, capsys, server):
        path = write("q.txt", "Why?\n")
        write("out", "kept")
        where = ["--base-url", server.url, "--model", "m"]
        for arguments in (
            ["plan", path, "--budget", 9, "--out", "out"],
            ["plan", path, "--budget", 9, "--errors", "out"],
            ["forecast", path, "--out", "out"],
            ["run", path, "--budget", 9, "--out", "out", *where],
            ["collect", path, "--out", "out", *where],
        ):
            assert "out: exists (--force replaces it" in self.refused(capsys, *arguments)
            assert (inside / "out").read_text() == "kept"
        assert not server.requests
        assert command("forecast", path, "--out", "out", "--force") == 0
        assert len(read_jsonl(inside / "out")) == 1

    def test_a_resumed_run_rewrites_its_files(self, inside, server):
        arguments = ["run", write("q.txt", "Why?\n"), "--budget", "1k", "--base-url", server.url, "--model", "m"]
        assert command(*arguments) == 0
        before = (inside / "q.answers.jsonl").read_text()
        assert command(*arguments, "--resume") == 0
        assert (inside / "q.answers.jsonl").read_text() == before != ""

    def test_a_run_is_never_replaced_and_nothing_promises_that_it_could_be(self, inside, capsys, server):
        arguments = ["run", write("q.txt", "Why?\n"), "--budget", "1k", "--base-url", server.url, "--model", "m"]
        assert command(*arguments) == 0
        capsys.readouterr()
        for more in ([], ["--force"]):
            shown = self.refused(capsys, *arguments, *more)
            assert "q.answers.jsonl.run: exists (--resume continues its run; to start a new one, " in shown
            assert "--force" not in shown
        assert len(server.requests) == 1

    @pytest.mark.parametrize("out", ["-", "/dev/null", "/dev/stdout"])
    def test_nothing_is_put_beside_a_stream(self, inside, server, out):
        arguments = ["run", write("q.txt", "Why?\n"), "--budget", "1k", "--base-url", server.url, "--model", "m"]
        done = subprocess.run([*COMMAND, *arguments, "--out", out], cwd=inside, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sorted(os.listdir(inside)) == ["q.declined.jsonl", "q.run", "q.txt"]

    def test_errors_go_beside_the_output(self, inside, server):
        path = write("q.txt", "Why?\n")
        assert command("plan", path, "--budget", "1k") == 0
        assert command("run", path, "--budget", "1k", "--base-url", server.url, "--model", "m") == 0
        os.mkdir("results")
        assert command("plan", path, "--budget", "1k", "--out", "results/x.jsonl") == 0
        assert sorted(os.listdir(inside)) == [
            "q.answers.declined.jsonl", "q.answers.jsonl", "q.answers.jsonl.run",
            "q.planned.declined.jsonl", "q.planned.jsonl", "q.txt", "results",
        ]  # fmt: skip
        assert sorted(os.listdir("results")) == ["x.declined.jsonl", "x.jsonl"]

    def test_a_place_that_cannot_be_written_is_found_before_anything_is_sent(self, capsys, server):
        path = write("q.txt", "Why?\n")
        where = ["--base-url", server.url, "--model", "m"]
        for name in ("run", "collect"):
            budget = ["--budget", 900] if name == "run" else []
            shown = self.refused(capsys, name, path, *budget, "--out", "no/such/folder", *where)
            assert "no/such/folder: cannot be written: No such file or directory" in shown
        assert not server.requests

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    def test_a_full_disk_names_the_file(self, capsys):
        shown = self.refused(capsys, "plan", write("q.txt", "Why?\n"), "--budget", 900, "--out", "/dev/full", "--quiet")
        assert "/dev/full: cannot be written: no space left" in shown


class TestTemperature:
    @pytest.mark.parametrize(("more", "sent"), [([], [None, 0.5]), (["--temperature", 0], [0, 0.5])])
    def test_it_is_that_of_requests_which_state_none(self, server, batch, more, sent):
        path = batch([request_line("a"), request_line("b", temperature=0.5)])
        arguments = ["run", path, "--budget", "1k", "--base-url", server.url, "--concurrency", 1]
        assert command(*arguments, "--policy", "uniform", *more) == 0
        assert [each.body.get("temperature") for each in server.requests] == sent

    @pytest.mark.parametrize("number", ["-1", "nan", "inf"])
    def test_an_invalid_one_is_refused(self, capsys, number):
        arguments = ["run", write("q.txt", "Why?\n"), "--budget", 9, "--base-url", "http://127.0.0.1:9/v1"]
        assert command(*arguments, "--temperature", number) == 2
        assert "(give 0 or more)" in capsys.readouterr().err


def test_a_mistyped_policy(capsys):
    arguments = ["run", write("q.txt", "Why?\n"), "--budget", 5, "--base-url", "http://127.0.0.1:9/v1"]
    for wrong, shown in (
        ("indx", "unknown policy 'indx' (did you mean index?)"),
        ("INDEX", "unknown policy 'INDEX' (did you mean index?)"),
        ("magic", "(known are uniform, proportional, "),
        ("oracle", "policy oracle knows every length in advance, so it cannot be run"),
    ):
        assert command(*arguments, "--policy", wrong) == 2
        assert shown in capsys.readouterr().err


def test_the_index_cannot_be_planned(capsys):
    assert command("plan", write("q.txt", "Why?\n"), "--budget", 5, "--policy", "index") == 2
    assert "cannot be planned (use expected; `shadowprice run` has the index)" in capsys.readouterr().err


def test_an_address_as_the_input(capsys):
    assert command("plan", "https://example.com/q.csv", "--budget", 5) == 2
    assert "is an address, not a file (download it" in capsys.readouterr().err


class TestBudgetsAndGold:
    def test_budgets(self, batch, capsys):
        path = batch([request_line("a")])
        assert command("plan", path, "--budget", "1e6", "--json") == 0
        assert json.loads(capsys.readouterr().out)["budget"] == 1_000_000
        for budget, problem in (
            ("1.5", "is not a whole number of tokens (1.5k, or 1.5M?)"),
            ("-5", "is negative"),
            ("abc", "is not an amount of tokens or money"),
        ):
            assert command("plan", path, "--budget", budget, "--force") == 2
            assert problem in capsys.readouterr().err

    def test_without_the_grader_for_mathematics_nothing_is_lost(self, inside, capsys, server, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        path = write("q.csv", "question,answer,grader\nWhy?,7,\nSay word,word,exact\n")
        where = ["--base-url", server.url, "--model", "m", "--quiet"]
        assert command("run", path, "--budget", "2k", *where) == 0
        assert [line["shadowprice"]["correct"] for line in read_jsonl(inside / "q.answers.jsonl")] == [None, True]
        assert "note: 1 answer will not be graded: " in capsys.readouterr().err
        gold = write("gold.jsonl", '{"custom_id": "a", "gold": "7"}\n')
        assert command("run", path, "--budget", "2k", "--gold", gold, "--out", "other", *where) == 2
        assert "pip install 'shadowprice[math]'" in capsys.readouterr().err

    def test_words_are_not_graded_as_mathematics(self, inside, capsys, server):
        path = write("q.csv", "question,answer\nSay word,Word\nSay 1,1\n")
        assert command("run", path, "--budget", "2k", "--base-url", server.url, "--model", "m") == 0
        assert "answer -> gold (words, math)" in capsys.readouterr().err
        assert [line["shadowprice"]["correct"] for line in read_jsonl(inside / "q.answers.jsonl")] == [True, False]

    def test_gold_that_matches_nothing(self, batch, capsys, server):
        path = batch([request_line("a")])
        gold = batch([{"custom_id": "b", "gold": "5"}], "gold.jsonl")
        arguments = ["run", path, "--budget", 900, "--gold", gold, "--base-url", server.url, "--model", "m"]
        assert command(*arguments) == 2
        assert "gold.jsonl: none of its ids, such as 'b', is in " in capsys.readouterr().err
        assert not server.requests


class TestWords:
    @pytest.mark.parametrize(
        ("number", "noun", "words"),
        [
            (0, "request", "0 requests"),
            (1, "query", "1 query"),
            (2, "query", "2 queries"),
            (1234, "task", "1,234 tasks"),
        ],
    )
    def test_how_many(self, number, noun, words):
        assert common.count(number, noun) == words

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (0, "about 0"),
            (0.0068, "less than 0.01"),
            (0.123, "about 0.12"),
            (9.96, "about 10"),
            (10.4, "about 10"),
            (12345.6, "about 12,346"),
        ],
    )
    def test_about_how_many(self, number, words):
        assert common.about(number) == words

    @pytest.mark.parametrize(
        ("level", "shown"),
        [
            ("", ""),
            ("process", "; programs ran without a sandbox"),
            ("namespaces", "; programs ran in the sandbox namespaces"),
        ],
    )
    def test_where_programs_ran(self, level, shown):
        assert common.where_programs_ran(level) == shown


def test_a_policy_option_is_a_name_and_a_number():
    assert common.option("beta = 0.002") == ("beta", 0.002)
    for text in ("beta", "beta=", "beta=x", ""):
        with pytest.raises(InputError, match="is not NAME=NUMBER"):
            common.option(text)


class TestFilesThatMustDiffer:
    def test_one_file_by_two_names_is_found(self, inside):
        write("a", "")
        os.symlink("a", "b")
        with pytest.raises(InputError, match=r"^b: is both input and out \(name another file\)$"):
            common.refuse_same_file(input="a", out="b")
        with pytest.raises(InputError, match="is both out and errors"):
            common.refuse_same_file(out=str(inside / "a"), errors="./a")

    def test_streams_and_files_that_are_not_given_do_not_collide(self):
        common.refuse_same_file(input="-", out="-", errors=None, forecast=None)
        with pytest.raises(InputError, match="is both out and errors"):
            common.refuse_same_file(out="-", errors="-")


class TestFilesOfOtherPrograms:
    """What spreadsheets, datasets and other tools write is read as meant, or refused in a line with the fix."""

    @pytest.mark.parametrize(
        ("name", "content"),
        {
            "Excel with its separator": ("q.csv", "sep=;\r\nquestion;answer\r\nWhat is 2?;2\r\nWhat is 3?;3\r\n"),
            "an old Macintosh table": ("q.csv", "question,answer\rWhat is 2?,2\rWhat is 3?,3\r"),
            "old Macintosh lines": ("q.txt", "What is 2?\rWhat is 3?\r"),
            "bars": ("q.csv", "question|answer\nWhat is 2?|2\nWhat is 3?|3\n"),
            "chats in a table": (
                "q.csv",
                'messages\n"[{""role"":""user"",""content"":""What is 2?""}]"\n'
                '"[{""role"":""user"",""content"":""What is 3?""}]"\n',
            ),
        }.values(),
    )
    def test_are_read_as_meant(self, name, content, inside, capsys):
        assert command("plan", write(name, content), "--budget", "2k", "--out", "plan.jsonl") == 0
        assert f"2 questions from {name}: " in capsys.readouterr().err
        bodies = [line["body"] for line in read_jsonl(inside / "plan.jsonl")]
        assert [body["messages"][0]["content"] for body in bodies] == ["What is 2?", "What is 3?"]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        {
            "a column of another name": ("q.csv", "text\nWhy?\n", "there are text (name the questions with --prompt-f"),
            "no header": ("q.csv", "Why?,4\nHow?,5\n", "or begin with a line of column names)"),
            "inside a field": ("q.jsonl", '{"data": {"question": "Why?"}}\n', "jq -c '. + .data' OLD > NEW.jsonl)"),
            "inside a list": ("q.json", '{"data": [{"question": "Why?"}]}\n', "jq -c '.data[]' OLD > NEW.jsonl)"),
            "two places": ("q.jsonl", '{"instruction": "Translate", "input": "Ja"}\n', "the question is in two places"),
            "texts in JSON": ("q.jsonl", '"Why?"\n', 'write {"question": ..., "answer": ...})'),
            "Python in a table": ("q.csv", "messages\n\"[{'role': 'user'}]\"\n", "not JSON (write it with json.dumps)"),
            "an old spreadsheet": ("q.xls", b"\xd0\xcf\x11\xe0" + bytes(99), "is an old spreadsheet or document (save"),
            "Parquet": ("q.parquet", b"PAR1\x15\x04", "is a Parquet file (save it as JSON lines"),
            "zstd": ("q.jsonl.zst", b"\x28\xb5\x2f\xfd\xc8", "is packed with zstd (unpack it"),
            "UTF-32": ("q.txt", "Why?\n".encode("utf-32"), "is UTF-32, not UTF-8 (convert it: iconv -f UTF-32"),
            "a limit in line 3": (
                "q.jsonl",
                '{"messages": [{"role": "user", "content": "a"}]}\n\n'
                '{"messages": [{"role": "user", "content": "b"}], "max_tokens": "9"}\n',
                "q.jsonl:3: max_tokens is '9'",
            ),
        }.values(),
    )
    def test_are_refused_in_one_line_with_the_fix(self, name, content, message, inside, capsys):
        assert command("plan", write(name, content), "--budget", "2k") == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1
        assert os.listdir(inside) == [name]

    def test_tables_are_found_under_other_names(self, inside, capsys):
        table = "question,answer\nWhy?,4\nHow?,5\n"
        for name, content in {
            "q.tsv": table,
            "q.txt": table,
            "semicolons.tsv": table.replace(",", ";"),
            "ends.csv": table.replace("4", "4,").replace("5", "5,,"),
        }.items():
            assert command("plan", write(name, content), "--budget", "2k", "--out", "plan.jsonl", "--force") == 0
            assert f"2 questions from {name}: question -> prompt, answer -> gold (math)\n" in capsys.readouterr().err
            asked = [line["body"]["messages"][0]["content"] for line in read_jsonl(inside / "plan.jsonl")]
            assert asked == ["Why?", "How?"]

    def test_what_is_not_used_is_named_with_the_option_that_would_use_it(self, capsys):
        record = {"problem": "Why?", "level": 5, "choices": ["a"], "answers": ["4"], "final_answer": "4"}
        path = write("q.jsonl", json.dumps(record) + "\n")
        assert command("plan", path, "--budget", "2k") == 0
        unused = "; not used: level, choices, answers, final_answer (--gold-field final_answer grades with it)\n"
        assert capsys.readouterr().err.endswith(unused)
        assert command("plan", path, "--budget", "2k", "--gold-field", "final_answer", "--force") == 0
        assert capsys.readouterr().err.endswith("final_answer -> gold (math); not used: level, choices, answers\n")

    def test_a_template_that_wants_other_columns_is_refused(self, capsys):
        path, template = write("q.csv", "question,A,B\nWhich?,1,2\n"), write("t.txt", "{question}\nA: {A}\nB: {B}\n")
        assert command("plan", path, "--budget", "2k", "--prompt-template", template) == 2
        assert "q.csv: has a field A, and a template fills in nothing but {problem} (write" in capsys.readouterr().err

    def test_the_likely_column_is_suggested(self, capsys):
        assert command("plan", write("q.csv", "Query text,Instruction\n1,Why?\n"), "--budget", "2k") == 2
        assert "(name the questions with --prompt-field Instruction, or begin" in capsys.readouterr().err

    def test_bodies_of_requests_keep_their_limits_and_settings(self, inside, capsys):
        record = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 20, "temperature": 0.7, "note": 1}
        path = write("q.jsonl", json.dumps(record) + "\n")
        assert command("plan", path, "--budget", "2k", "--limit-field", "max_tokens", "--out", "plan.jsonl") == 0
        assert "messages -> prompt, max_tokens, temperature -> request" in capsys.readouterr().err
        (line,) = read_jsonl(inside / "plan.jsonl")
        assert line["body"] == {"messages": record["messages"], "max_tokens": 20, "temperature": 0.7}

    def test_results_may_all_be_thrown_away(self, capsys):
        path = write("q.txt", "Why?\n")
        assert command("plan", path, "--budget", "2k", "--out", os.devnull, "--errors", os.devnull) == 0
