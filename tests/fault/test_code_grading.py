"""Does a program solve its problem? Right programs do, wrong ones do not, and forged success is no success."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault.attack_table import naive_score
from fault.attacks import FORGERIES, SOLUTION, SUM, Forgery
from tokencredit.config.task import CodeTask
from tokencredit.errors import ConfigError
from tokencredit.grade import sandbox
from tokencredit.grade.code import REMAINING_HOLE, CodeGold, cut_gold, extract_program, grade_code, run_tests, values
from tokencredit.grade.code.split import GoldError
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.sandbox import CodeLimits, SandboxError, bubblewrap
from tokencredit.tasks import Code, verdicts

pytestmark = pytest.mark.bubblewrap
LIMITS = CodeLimits()


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap_works() -> None:
    failure = sandbox.bubblewrap_failure()
    assert failure is None, (
        f"these tests need bubblewrap (Debian and Ubuntu: apt-get install bubblewrap), which does not work here: {failure}"
    )


def gold(*tests: str, setup: str = "") -> str:
    return CodeGold(tests, setup).dumps()


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.name)
def test_forged_success_is_no_success(forgery: Forgery, tmp_path: Path) -> None:
    assert naive_score(forgery.program, SUM, tmp_path) == 1.0
    assert grade_code(gold(*SUM), forgery.program) == 0.0


def test_a_naive_grader_tells_honest_programs_apart(tmp_path: Path) -> None:
    """So that what it says of forgeries is their doing."""
    assert [naive_score(program, SUM, tmp_path) for program in (SOLUTION, SOLUTION.replace("+", "-"))] == [1.0, 0.0]


HONEST = {
    "right": (SOLUTION, 1.0),
    "right, in a fence": (f"Here it is:\n```python\n{SOLUTION}```\nDone.", 1.0),
    "right, with noise": (f"print('hello', flush=True)\nimport sys; sys.stderr.write('x' * 10**6)\n{SOLUTION}", 1.0),
    "right, guarded main": (f"{SOLUTION}\nif __name__ == '__main__':\n    raise SystemExit(1)", 1.0),
    "right, a subclass of int": ("class N(int): pass\ndef add(a, b): return N(a + b)", 1.0),
    "wrong": (SOLUTION.replace("+", "-"), 0.0),
    "right but for one": ("def add(a, b): return a + b if a >= 0 else None", 0.0),
    "raises": ("def add(a, b): raise KeyError", 0.0),
    "no such function": ("def plus(a, b): return a + b", 0.0),
    "no Python": ("I would add the numbers.", 0.0),
    "nothing": ("", 0.0),
    "never ends": ("def add(a, b):\n    while True: pass", 0.0),
    "never loads": ("import time\ntime.sleep(100)", 0.0),
    "too much memory": ("def add(a, b): return len(bytearray(1 << 31)) and a + b", 0.0),
    "floods its answers": ("def add(a, b): return 'x' * 10**7", 0.0),
}


@pytest.mark.parametrize("case", HONEST)
def test_programs_get_the_score_they_deserve(case: str) -> None:
    response, score = HONEST[case]
    assert grade_code(gold(*SUM), response, wall_seconds=1.0 if "never" in case else 10.0) == score


VALUES = """
None  True  False  0  -7  2**5000  -(10**400)  0.1  -0.0  1e-320  float('inf')  -float('inf')  float('nan')  1+2j
complex(-0.0,float('nan'))  ''  'text'  'né€\\U0001f600'  '\\ud800'  '\\x00\\n'  b'\\x00\\xff'  []  ()  {}  set()
frozenset()  [1,(2,[3.0,(4,)])]  {(1,'a'):[None]}  {1.5}  frozenset({(1,)})  {'b':1,'a':2}  range(0,10,3)  [True,1,1.0]
(b'',)  {None:{True:()}}
""".split()  # noqa: SIM905, quotes within quotes


def test_values_come_out_as_they_went_in() -> None:
    told = values.evaluate(VALUES, program="", setup="", limits=LIMITS, isolation="bubblewrap")
    assert [repr(value) for value in told.replies] == [repr(eval(text)) for text in VALUES]


PLAIN_OF = {
    "__import__('collections').Counter('aab')": {"a": 2, "b": 1},
    "__import__('collections').namedtuple('P', 'x y')(1, 2)": (1, 2),
    "__import__('collections').OrderedDict(a=1)": {"a": 1},
    "__import__('fractions').Fraction(1, 3)": __import__("fractions").Fraction(1, 3),
    "__import__('decimal').Decimal('1.10')": __import__("decimal").Decimal("1.1"),
    "{1: 2}.keys()": {1},
    "type('T', (str,), {'__eq__': lambda *_: True, '__str__': lambda _: 'no'})('yes')": "yes",
    "type('L', (list,), {'__iter__': lambda _: iter('no')})([1])": [1],
}


def test_kin_of_plain_data_counts_as_the_data_it_is() -> None:
    told = values.evaluate([*PLAIN_OF], program="", setup="", limits=LIMITS, isolation="bubblewrap")
    assert told.replies == [*PLAIN_OF.values()]
    assert [type(reply) for reply in told.replies] == [type(value) for value in PLAIN_OF.values()]


PROGRAM = """
import re
def f(*given): return given[0] if len(given) == 1 else given
def half(x): return x / 2
def match(x): return re.match('a', x)
def many(n): return (i * i for i in range(n))
def fails(*_): raise ValueError
def no(*_): return None
"""
ASSERTIONS = """f(3) == 3 | f(3) == 4 | f(3) != 4 | f(1, 2) == (1, 2) | f(1, 2) == [1, 2] | f([1, (2,)]) == [1, (2,)] | f(True) == 1
f(1.0) == 1 | f('a') == 'a' | f({1: [2]}) == {1: [2]} | half(3) == 1.5 | half(1) < 1 <= half(2) | half(1) < 1 < half(2)
f(2) in (1, 2) | f(3) not in (1, 2) | f(3) in (1, 2) | 'b' in f('abc') | f('abc')[1] == 'b' | f('ABC').lower() == 'abc'
list(many(3)) == [0, 1, 4] | set(many(3)) == set([4, 1, 0]) | sum(many(3)) == 5 | len(f([1, 2])) == 2
abs(half(1) - 0.5000001) < 1e-6 | abs(half(1) - 0.6) < 1e-6 | round(f(2.675), 1) == 2.7 | -f(3) == -3 | f(3) * 2 + 1 == 7
f(3) == f(3) | f(3) == half(6) | f(3) == half(5) | math.isclose(half(1), 0.5001, rel_tol=1e-3) | no(1) is None | f(1) is None
math.isclose(half(1), 0.51, rel_tol=1e-3) | math.isclose(half(1), 0.51, abs_tol=0.1) | f(1) is not None | match('abc')
not match('abc') | match('b') | not match('b') | (f(0) or 5) == 5 | (f(3) and 7) == 7 | (f(0) or 5) == 1 | f(3) == True | f(1) == True
f('aba').count('a') == 1 | f('ab').count('a') == 1 | f('\\d') == '\\d' | match('a') and f(1) | match('b') or f(0)
f(0) or f(1) == 1 | fails(1)
not fails(1) | fails(1) == fails(1) | f(1) or fails(1) | f('3') == 3 | f('3') < 4 | f(None) == None
f(float('nan')) == float('nan') | f(float('inf')) == float('inf') | f(10**30) == 10**30 | f(1, 2) == tuple([1, 2])
f(0.1) + f(0.2) == 0.3 | f({1, 2}) == {2, 1} | sorted(f({3, 1})) == [1, 3] | isinstance(f(1), int) | isinstance(f(1), str)
f(lambda x: x > 1)(2) == True | f(1) == 1 and f(2) == 2 and not f(3) == 4 | all(many(3)) | any(many(3))
f(math.pi) == math.pi | f(b'a') == b'a'"""


def test_an_assertion_cut_in_two_says_what_python_says() -> None:
    assertions = [part.strip() for part in ASSERTIONS.replace("\n", " | ").split(" | ")]
    namespace: dict[str, Any] = {"math": math}
    exec(PROGRAM, namespace)
    truth = [_holds(assertion, namespace) for assertion in assertions]
    end = run_tests(gold(*(f"assert {text}" for text in assertions), setup="import math"), PROGRAM, limits=LIMITS)
    assert dict(zip(assertions, end.passed, strict=True)) == dict(zip(assertions, truth, strict=True))
    assert 15 < sum(truth) < len(truth) - 15


def _holds(assertion: str, namespace: dict[str, Any]) -> bool:
    try:
        return bool(eval(assertion, namespace))
    except Exception:
        return False


EXPECTED_STAYS_OUT = (
    "assert f(1) == 987654321",
    "assert 987654321 == f(1)",
    "assert f(1) != 2 and not f(1) < 987654321",
    "assert math.isclose(f(1), 987654321, rel_tol=1e-9)",
    "assert abs(f(1) - 987654321) < 0.1",
    "assert set(f(1)) == set([987654321])",
    "assert f(1) in [1, 987654321]",
    "assert [f(1), f(2)] == [987654321, 1]",
    "assert sorted(f(1), key=lambda x: -x)[0] == int('987654321')",
)


def _given_to_programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    run, seen = values.run_program, []

    def watched(source: str, **rest: Any) -> Any:
        if json.loads(rest["given"])["program"]:
            seen.append(source + rest["given"])
        return run(source, **rest)

    monkeypatch.setattr(values, "run_program", watched)
    return seen


@pytest.mark.parametrize("test", EXPECTED_STAYS_OUT)
def test_what_is_expected_never_enters_the_programs_process(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _given_to_programs(monkeypatch)
    run_tests(gold(test, setup="import math"), "def f(x): return 0", limits=LIMITS)
    assert len(seen) == 1
    assert "987654321" not in seen[0]


INSIDE_ONLY = (
    "assert all(f(x) == y for x, y in [(1, 987654321)])",
    "assert operator.eq(f(1), 987654321)",
    "assert f(1).__eq__(987654321)",
    "assert operator.eq(f(1), 987654321) == True",
)


@pytest.mark.parametrize("test", INSIDE_ONLY)
def test_what_can_only_be_judged_inside_is_refused_unless_accepted(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = gold(test, setup="import operator")
    with pytest.raises(GoldError, match="judged where the program could tamper with it"):
        grade_code(row, "def f(x): return 987654321")
    seen = _given_to_programs(monkeypatch)
    anything = "class A:\n    def __eq__(self, other): return True\ndef f(x): return A()"
    scores = [grade_code(row, program, judge_inside=True) for program in ("def f(x): return 987654321", "def f(x): return 1", anything)]
    # The last one is forged: the hole that REMAINING_HOLE admits.
    assert scores == [1.0, 0.0, 1.0]
    assert "equals everything passes it" in REMAINING_HOLE
    assert "987654321" in seen[0]


def test_expected_values_are_computed_where_no_program_can_reach() -> None:
    row = gold("assert size((1, 2)) == sys.getsizeof((1, 2))")
    assert cut_gold(row).expected == ("sys.getsizeof((1, 2))",)
    assert grade_code(row, "import sys\ndef size(x): return sys.getsizeof(x)") == 1.0
    assert grade_code(row, "import sys\nsys.getsizeof = lambda x: 0\ndef size(x): return 0") == 0.0


def test_a_program_may_take_a_name_of_pythons_own() -> None:
    row = gold("assert sum(10, 15) == 6", "assert sum(4, 6) == 3")
    assert cut_gold(row).questions == ("sum(10, 15)", "sum(4, 6)")
    common = "def sum(a, b): return a and b and {(10, 15): 6, (4, 6): 3}[a, b]"
    assert [grade_code(row, program) for program in (common, "")] == [1.0, 0.0]


def test_a_setup_may_lean_on_the_program_and_the_program_on_the_setup() -> None:
    tree = gold("assert depth(root) == 2", setup="root = Node()\nroot.left = Node()")
    program = "class Node: left = None\ndef depth(node): return 0 if node is None else 1 + depth(node.left)"
    assert grade_code(tree, program) == 1.0
    assert grade_code(gold("assert f(4) == 2", setup="import math"), "def f(x): return math.isqrt(x)") == 1.0


HOSTILE_ANSWERS = {
    "nested without end": '["value", ' + '["list", ' * 20_000,
    "nested deeply": '[["value", ' + '["list", ' * 5000 + '["none"]' + "]" * 5000 + "]]",
    "a huge exponent": '[["value", ["decimal", "1e999999999"]]]',
    "a long range": '[["value", ["range", "0x0", "0x7fffffffffffffff", "0x1"]]]',
    "an odd dict": '[["value", ["dict", ["none"]]]]',
    "a dict of lists": '[["value", ["dict", ["list"], ["none"]]]]',
    "no tag": '[["value", ["eval", "1"]]]',
    "no list": '[["value", 5]]',
    "not two": '[["value"]]',
    "too many": '[["value", ["int", "0x5"]], ["value", ["int", "0x5"]]]',
    "no division": '[["value", ["fraction", "0x1", "0x0"]]]',
    "another kind": '[{"value": 5}]',
}


def _answering(text: str) -> str:
    """A program that writes these answers itself, wherever they go."""
    write = f"    try:\n        os.write(number, {text.encode()!r})\n    except OSError:\n        pass\n"
    return f"import os\nfor number in range(3, 64):\n{write}os._exit(0)"


@pytest.mark.parametrize("case", HOSTILE_ANSWERS)
def test_answers_that_are_none_are_wrong_and_harm_nobody(case: str) -> None:
    assert grade_code(gold("assert 1.5 in f(1)"), _answering(HOSTILE_ANSWERS[case])) == 0.0


def test_a_right_answer_written_by_hand_is_the_value_it_is() -> None:
    """The control of the test above: the way it writes is the way answers come."""
    program = _answering('[["value", ["list", ["float", "0x1.8p+0"]]]]')
    assert grade_code(gold("assert 1.5 in f(1)"), program) == 1.0


def test_nobody_calculates_with_what_a_program_sent() -> None:
    row = gold("assert f(1) * 'ab' == 3", "assert f(1) * 10 == 3")
    assert run_tests(row, "def f(x): return 10**12", limits=LIMITS).passed == (False, False)
    assert run_tests(gold("assert f(1) * f(1) > 0"), "def f(x): return 1 << 100000", limits=LIMITS).passed == (False,)
    assert run_tests(gold("assert f(1) * f(1) > 0"), "def f(x): return 1 << 1000", limits=LIMITS).passed == (True,)


BAD_GOLD = {
    "not JSON": ("assert f(1) == 2", "must be JSON like"),
    "no tests": ('{"setup": ""}', "must be JSON like"),
    "empty": ('{"tests": []}', "there are no tests"),
    "tests not text": ('{"tests": [1]}', "must be a list of text"),
    "no Python": (gold("assert f(1 == 2"), "a test is not Python"),
    "no assertion": (gold("f(1)"), "must be an assertion and nothing else"),
    "asks nothing": (gold("assert 1 == 1"), "does not use the program"),
    "setup no Python": (gold("assert f(1) == 1", setup="import"), "the setup is not Python"),
    "expected fails": (gold("assert f(1) == int('x')"), "cannot be computed: it raised ValueError"),
    "expected is no data": (gold("assert f(1) == object()"), "is a object, which cannot be compared"),
}


@pytest.mark.parametrize("case", BAD_GOLD)
def test_tests_that_cannot_be_used_are_nobodys_failure(case: str) -> None:
    row, said = BAD_GOLD[case]
    with pytest.raises(GoldError, match=said):
        grade_code(row, "def f(x): return 1")


EXTRACTED = {
    "plain": ("def f(): pass", "def f(): pass"),
    "the last": ("```python\none\n```\ntext\n```python\ntwo\n```\nend", "two\n"),
    "python before others": ("```py\none\n```\n```text\noutput\n```", "one\n"),
    "any fence": ("so\n```\none\n```", "one\n"),
    "never closed": ("so\n```python\none\ntwo", "one\ntwo"),
    "opened by the prompt": ("one\ntwo\n```\nThis is it.", "one\ntwo"),
    "in upper case": ("```Python\none\n```", "one\n"),
    "a fence that another follows": ("```python\none\n```python\ntwo\n```", "one\n```python\ntwo\n"),
    "fences without end": ("```python\n" * 20_000, "```python\n" * 19_999),
    "backticks inside": ("```python\nx = '```'\n```", "x = '```'\n"),
}


@pytest.mark.parametrize("case", EXTRACTED)
def test_the_program_in_a_response(case: str) -> None:
    response, program = EXTRACTED[case]
    assert extract_program(response) == program


def test_a_broken_sandbox_grades_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: "/bin/false")
    with pytest.raises(SandboxError, match="could not start the program"):
        grade_code(gold(*SUM), SOLUTION)


def test_the_pool_tells_unsolved_from_ungraded() -> None:
    asked = [(gold(*SUM), SOLUTION), (gold(*SUM), "no"), (gold("f(1)"), SOLUTION), ("?", SOLUTION)]
    with GraderPool(grader="code", workers=2) as pool:
        found = pool.grade(asked)
    assert [verdict.score for verdict in found[:2]] == [1.0, 0.0]
    assert all(math.isnan(verdict.score) for verdict in found[2:])
    assert "GoldError: a test must be an assertion" in (found[2].reason or "")


ROWS = [
    {"text": "Add {two} numbers.", "code": SOLUTION, "test_list": list(SUM), "test_setup_code": ""},
    {"text": "Negate.", "code": "def neg(a): return -a", "test_list": ["assert neg(1) == -1"], "test_setup_code": ["import math"]},
    {"text": "Broken.", "code": "def twice(a): return a", "test_list": ["assert twice(1) == 2"]},
    {"text": "Inside.", "code": "def same(a): return a", "test_list": ["assert all(same(x) == x for x in [1])"]},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def task(rows: Path) -> Iterator[Code]:
    held_out = rows.with_name("held-out.jsonl")
    held_out.write_text(json.dumps(ROWS[1] | {"text": "Negate it."}))
    made = Code(CodeTask(path=str(rows), held_out_path=str(held_out), allow_code_execution=True))
    yield made
    made._pool.close()


def test_the_task_asks_without_telling_and_grades_in_the_sandbox(task: Code) -> None:
    asked = {problem.prompt.split("\n")[0]: problem for problem in task.problems(4, split="train", seed=0)}
    assert set(asked) == {row["text"] for row in ROWS}
    add = asked["Add {two} numbers."]
    assert "It will be called like this: add(2, 3)\n" in add.prompt
    assert "== 5" not in add.prompt
    found = verdicts(task, [(add, f"```python\n{SOLUTION}```"), (add, "```python\ndef add(a, b): return 5\n```"), (asked["Inside."], "x")])
    assert [verdict.score for verdict in found[:2]] == [1.0, 0.0]
    assert math.isnan(found[2].score)
    assert "judge_inside=True" in (found[2].reason or "")


def test_rows_whose_reference_fails_are_left_out(task: Code) -> None:
    report = task.check_gold()
    assert (report.checked, [line for line, _ in report.failed]) == (5, [3, 4])
    texts = {problem.prompt.split("\n")[0] for problem in task.problems(10, split="train", seed=0)}
    assert texts == {"Add {two} numbers.", "Negate."}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "not allowed": (
        {},
        {"allow_code_execution": False},
        "task.allow_code_execution is false; task 'code' runs programs that a model wrote",
    ),
    "no path": ({}, {"path": None}, "task.path is not set"),
    "no file": ({}, {"path": "nowhere.jsonl"}, "task.path 'nowhere.jsonl' is not a file"),
    "template": ({}, {"template": "solve it"}, "it must hold {text}"),
    "column": ({}, {"text": "prompt"}, "line 1: no column 'prompt'"),
    "tests": ({"test_list": "assert add(1, 1) == 2"}, {}, "line 1: test_list must be a list of assertions"),
    "no assertion": ({"test_list": ["add(1, 1)"]}, {}, "line 1: test_list: a test must be an assertion"),
    "setup": ({"test_setup_code": 5}, {}, "line 1: test_setup_code must be text or a list of text"),
    "no code": ({"code": " "}, {}, "line 1: code is empty"),
    "leak": ({}, {"held_out_path": "same"}, "1 questions of task.held_out_path"),
}


def test_a_task_without_isolation_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]))
    with_it, without = (
        Code(CodeTask(path=str(path), allow_code_execution=True, isolation=isolation)) for isolation in ("bubblewrap", "plain")
    )
    assert with_it.cautions == ()
    assert "without isolation" in without.cautions[0]
    capsys.readouterr()


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named(case: str, tmp_path: Path) -> None:
    cells, options, said = REFUSED[case]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0] | cells))
    chosen: dict[str, Any] = {"path": str(path), "allow_code_execution": True} | options
    if chosen.get("held_out_path"):
        chosen["held_out_path"] = str(path)
    with pytest.raises(ConfigError) as refused:
        Code(CodeTask(**chosen))
    assert said in str(refused.value)
