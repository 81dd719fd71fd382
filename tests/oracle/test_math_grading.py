"""What counts as the right answer: a table written by hand, and responses made to break the grader."""

import math
from collections.abc import Callable

import pytest

from tokencredit.grade.graders import grade_exact, grade_regex
from tokencredit.grade.math_answer import as_latex, grade_math, last_box
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits, Verdict

RIGHT = [
    ("42", r"so \boxed{42}"),
    ("42", "The answer is 42."),
    ("42", "6 * 7 = 42"),
    ("42", "I first said 41.\n#### 42"),
    ("42", "The answer is not 7, far from it.\n#### 42"),
    ("42", "#### Step 1\nSix times seven.\n#### Step 2\nSo it is 42"),
    ("42", "The answer is not 7.\n####42  \n\n"),
    ("42", r"\boxed{41}, no: \boxed{42}"),
    ("42", r"\boxed{41}" * 500 + r"\boxed{42}"),
    ("42", r"\boxed{42} and then I wrote \boxed{4"),
    ("42", r"\boxed{\boxed{42}}"),
    ("42", r"\boxed {42}"),
    ("42", r"\fbox{42}"),
    ("42", r"\boxed{42.0}"),
    ("42", r"\boxed{42.}"),
    ("42", r"\boxed{\text{42}}"),
    ("42", r"$$\boxed{42}$$"),
    ("42", r"\boxed{x = 42}"),
    ("42", "word " * 20_000 + r"\boxed{42}"),
    ("42", "1 " * 50_000 + "the answer is 42"),
    ("42", "\x00 the answer is 42"),
    ("42", "\udc80 \\boxed{42}"),
    ("42.0", r"\boxed{42}"),
    ("-7", r"\boxed{-7}"),
    ("1,234", r"\boxed{1234}"),
    ("1234", r"\boxed{1,234}"),
    ("1234", "It costs $1,234"),
    ("1,234,567.5", r"\boxed{1234567.5}"),
    ("1 000", r"\boxed{1000}"),
    ("3/4", r"\boxed{\frac{3}{4}}"),
    ("3/4", r"\boxed{0.75}"),
    ("3/4", r"\boxed{6/8}"),
    (r"\frac34", r"\boxed{3/4}"),
    ("3 1/2", r"\boxed{3.5}"),
    ("3.5", r"\boxed{3\frac{1}{2}}"),
    ("1e5", r"\boxed{100000}"),
    ("100000", r"\boxed{1e5}"),
    ("1.5e-3", r"\boxed{0.0015}"),
    ("2**10", r"\boxed{1024}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    ("x^2+1", r"\boxed{1+x^2}"),
    ("x^2-1", r"\boxed{(x-1)(x+1)}"),
    (r"\{1,2\}", r"\boxed{2, 1}"),
    (r"\boxed{5}", "so 5"),
    ("$5$", r"\boxed{5}"),
    ("5 cm", r"\boxed{5}"),
    ("5", r"\boxed{5\text{ cm}}"),
    ("12 dollars", r"\boxed{12}"),
    ("12", r"\boxed{12 dollars}"),
    ("12", r"\boxed{\$12}"),
    ("50%", r"\boxed{50\%}"),
    ("50%", r"\boxed{0.5}"),
    ("50", r"\boxed{50\%}"),
    ("Monday", r"\boxed{Monday}"),
    (r"\text{Monday}", r"\boxed{monday}"),
    ("A", r"\boxed{A}"),
    (r"\pi", r"\boxed{\pi}"),
    (r"\infty", r"\boxed{\infty}"),
]

WRONG = [
    ("42", r"\boxed{41}"),
    ("42", r"\boxed{42}, no: \boxed{41}"),
    ("42", "42 and then 41"),
    ("42", "#### 42\n#### 41"),
    ("42", ""),
    ("42", "I do not know."),
    ("42", "{" * 10_000),
    ("42", r"\boxed{" * 10_000),
    ("42", r"\boxed{}"),
    ("42", r"\boxed{\frac{1}{0}}"),
    ("42", r"\boxed{4\x002}"),
    ("42", r"\boxed{" + "9" * 50_000 + "}"),
    ("42", r"\boxed{-42}"),
    ("42", r"\boxed{4.2}"),
    ("42", r"\boxed{4,2}"),
    ("2", r"\boxed{2\sqrt{3}}"),
    (r"2\sqrt{3}", r"\boxed{2}"),
    ("3", r"\boxed{3+4i}"),
    ("3/4", r"\boxed{4/3}"),
    ("1/3", r"\boxed{0.33}"),
    ("1.2", r"\boxed{1,2}"),
    ("50%", r"\boxed{5}"),
    ("Monday", r"\boxed{dynamo}"),
    ("Monday", r"\boxed{Tuesday}"),
    ("12 dollars", r"\boxed{13 dollars}"),
    ("x^2+1", r"\boxed{x^2-1}"),
    ("1e5", r"\boxed{5}"),
    (r"\{1,2\}", r"\boxed{\{1,3\}}"),
]

UNREADABLE = ["", "   ", "{{{{", "?", "½½", "\x00", "9" * 2000]


def short(text: str) -> str:
    return ascii(text if len(text) < 40 else f"{text[:20]}~{len(text)}")


def misgraded(grade: Callable[[str, str], float | Verdict]) -> list[tuple[str, str]]:
    table = [(*pair, 1.0) for pair in RIGHT] + [(*pair, 0.0) for pair in WRONG]
    return [(gold, short(response)) for gold, response, score in table if grade(gold, response) != score]


@pytest.mark.parametrize(("gold", "response"), RIGHT, ids=short)
def test_right_answers(gold: str, response: str) -> None:
    assert grade_math(gold, response) == 1.0


@pytest.mark.parametrize(("gold", "response"), WRONG, ids=short)
def test_wrong_answers(gold: str, response: str) -> None:
    assert grade_math(gold, response) == 0.0


@pytest.mark.parametrize("gold", UNREADABLE, ids=short)
def test_a_gold_answer_that_cannot_be_read_grades_nothing(gold: str) -> None:
    for response in (rf"\boxed{{{gold}}}", "42"):
        verdict = grade_math(gold, response)
        assert isinstance(verdict, Verdict)
        assert math.isnan(verdict.score)
        assert "cannot be read" in (verdict.reason or "")


def test_the_table_rejects_plain_math_verify_and_the_naive_graders() -> None:
    """Wrong twins: the library called as it comes, text alone, and the last number alone."""
    from math_verify import parse, verify

    def as_it_comes(gold: str, response: str) -> float:
        return float(verify(parse(gold, parsing_timeout=0), parse(response[-2000:], parsing_timeout=0), timeout_seconds=0))

    assert len(misgraded(as_it_comes)) > 5
    assert len(misgraded(grade_exact)) > 20
    assert len(misgraded(lambda gold, response: grade_regex(gold, response, pattern=r"-?[\d.,/]+"))) > 20
    assert misgraded(grade_math) == []


HANGING = [r"\boxed{9^{9^{9^9}}}", "9^9^9^9", rf"\boxed{{{'(' * 200}42{')' * 200}}}"]


def test_answers_that_never_finish_are_not_graded_and_the_others_are() -> None:
    """math-verify's own limits would call these wrong."""
    with GraderPool(grader="math", limits=GradeLimits(seconds=2.5), workers=3) as pool:
        verdicts = pool.grade([("42", word) for hanging in HANGING for word in (hanging, r"\boxed{42}", r"\boxed{43}")])
    assert all(math.isnan(verdict.score) and verdict.reason for verdict in verdicts[::3])
    assert {verdict.score for verdict in verdicts[1::3]} == {1.0}
    assert {verdict.score for verdict in verdicts[2::3]} == {0.0}


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{1}{2}} then \boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a{b}c}", "a{b}c"),
        (r"\boxed{a \boxed{b} c}", "b"),
        (r"}} \boxed{1} {", "1"),
        (r"\boxed{1", None),
        (r"\\boxed{1}", None),
        (r"\boxed", None),
        ("boxed{1}", None),
    ],
)
def test_the_last_closed_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        (" 42. ", "42"),
        ("1.5e-3", r"1.5 \cdot 10^{-3}"),
        ("-3 1/2", r"-3\frac{1}{2}"),
        ("12 345 678", "12345678"),
        ("1,200 more apples", "1,200"),
        ("5 x", "5 x"),
        ("true", r"\text{true}"),
        ("abc", "abc"),
        ("2**x", "2^x"),
    ],
)
def test_plain_writing_becomes_latex(plain: str, latex: str) -> None:
    assert as_latex(plain) == latex


@pytest.mark.parametrize(
    ("gold", "response", "fold_case", "score"),
    [("a", " a\n", False, 1.0), ("a", "A", False, 0.0), ("Straße", "STRASSE", True, 1.0), ("a", "a b", True, 0.0), ("", "", False, 1.0)],
)
def test_exact(gold: str, response: str, fold_case: bool, score: float) -> None:
    assert grade_exact(gold, response, fold_case=fold_case) == score


@pytest.mark.parametrize(
    ("gold", "response", "pattern", "score"),
    [
        ("7", "#### 5\n#### 7 ", "#### *(.+)", 1.0),
        ("5", "#### 5\n#### 7", "#### *(.+)", 0.0),
        ("7", "seven", "#### *(.+)", 0.0),
        ("7", "a7b8", r"\d", 0.0),
        ("8", "a7b8", r"\d", 1.0),
        ("7", "7", "(7)|8", 1.0),
        ("7", "7 8", "(7)|8", 0.0),
    ],
)
def test_regex(gold: str, response: str, pattern: str, score: float) -> None:
    assert grade_regex(gold, response, pattern=pattern) == score
