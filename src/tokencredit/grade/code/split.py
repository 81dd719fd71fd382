"""Split an assertion into questions, which the program answers, and a judgement over the answers, made outside its process.

    assert set(f((3, 4), (4, 5))) == {4}     question  set(f((3, 4), (4, 5)))     judgement  <answer> == {4}

The expected side never enters the program's process. If it is no literal, a separate process that never sees the program
evaluates it. What can be judged outside: comparisons, `and`, `or`, `not`, arithmetic, `abs`, `round` and `isclose`.
"""

import ast
import builtins
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tokencredit.grade.code.judge import ARITHMETIC, COMPARISONS, SIGNS, Applied, Chain, Close, Either, Judgement, Known, Not, Reply

# Builtins whose result reveals no expected value: a program that fakes it has only returned a different value.
_REVEAL_NOTHING = frozenset({"bool", "len", "all", "any", "isinstance", "callable"})


class GoldError(ValueError):
    """The tests cannot be used: no program can be graded by them."""


class SplitTests(NamedTuple):
    judgements: tuple[Judgement, ...]
    questions: tuple[str, ...]
    """Evaluated in the process that runs the program."""
    expected: tuple[str, ...]
    """Evaluated in a process without the program."""
    judged_inside: tuple[str, ...]
    """Questions whose answer already is a judgement, made where the program could tamper with it."""


def _statements(text: str) -> list[ast.stmt]:
    """Parse without Python's warnings about escapes and comparisons: they concern the author of the tests, not the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text).body


def names_bound_by(setup: str) -> frozenset[str]:
    names: set[str] = set()
    for statement in _statements(setup):
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return frozenset(names)


def split_tests(tests: Iterable[str], *, setup: str = "") -> SplitTests:
    """GoldError for a test that is not an assertion, or that does not use the program."""
    try:
        splitter = _Splitter(names_bound_by(setup))
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise GoldError(f"the setup is not Python: {problem}") from None
    judgements = [judgement for test in tests for judgement in _judgements(test, splitter)]
    if not judgements:
        raise GoldError("there are no tests")
    return SplitTests(tuple(judgements), tuple(splitter.questions), tuple(splitter.expected), tuple(splitter.judged_inside))


def _judgements(test: str, splitter: "_Splitter") -> Iterator[Judgement]:
    try:
        statements = _statements(test.strip())
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise GoldError(f"a test is not Python ({problem}): {test!r}") from None
    for statement in statements:
        if not isinstance(statement, ast.Assert):
            raise GoldError(f"a test must be an assertion and nothing else: {test!r}")
        if not splitter.uses_program(statement.test):
            splitter.shadowed |= _first_called(statement.test)
        if not splitter.uses_program(statement.test):
            raise GoldError(f"a test does not use the program: {test!r}")
        yield splitter.part(statement.test)


def _first_called(node: ast.AST) -> frozenset[str]:
    """MBPP has a problem whose solution is called `sum`: a test that calls no other function means the program's function."""
    called = [inner.func.id for inner in ast.walk(node) if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)]
    return frozenset(called[:1])


@dataclass(slots=True)
class _Splitter:
    setup_names: frozenset[str]
    shadowed: frozenset[str] = frozenset()
    """Names of builtins that the program defines itself."""
    questions: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    judged_inside: list[str] = field(default_factory=list)

    def part(self, node: ast.expr, *, compared: bool = False) -> Judgement:
        """`compared`: the value is compared with another one outside, so the answer to its question is not itself a verdict."""
        if not self.uses_program(node):
            return self._known_or_expected(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                return Either(isinstance(op, ast.Or), tuple(self.part(value, compared=compared) for value in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Not(self.part(operand))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in SIGNS:
                return Applied(SIGNS[type(op)], (self.part(operand, compared=compared),))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = (left, *comparators)
                # Against True, False or None a question may be the verdict itself: `operator.eq(f(x), 3) == True`.
                compared = not any(isinstance(side, ast.Constant) and isinstance(side.value, bool | None) for side in sides)
                return Chain(tuple(COMPARISONS[type(op)] for op in ops), tuple(self.part(side, compared=compared) for side in sides))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                return Applied(ARITHMETIC[type(op)], (self.part(left, compared=compared), self.part(right, compared=compared)))
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]) if "abs" not in self.shadowed:
                return Applied(abs, (self.part(argument, compared=compared),))
            case ast.Call(func=ast.Name(id="round"), args=[argument, *digits], keywords=[]) if self._is_round(digits):
                return Applied(round, tuple(self.part(value, compared=compared) for value in (argument, *digits)))
            case ast.Call(func=function, args=[left, right], keywords=keywords) if _is_isclose(function):
                named = tuple((word.arg or "", self.part(word.value, compared=True)) for word in keywords)
                return Close(self.part(left, compared=True), self.part(right, compared=True), named)
        return self._question(node, compared=compared)

    def _question(self, node: ast.expr, *, compared: bool) -> Reply:
        text = ast.unparse(node)
        if not (compared or self._is_program_call(node)) or any(map(_compares, _outside_lambdas(node))):
            self.judged_inside.append(text)
        self.questions.append(text)
        return Reply("program", len(self.questions) - 1)

    def _is_round(self, digits: list[ast.expr]) -> bool:
        return "round" not in self.shadowed and all(map(_is_literal, digits))

    def _known_or_expected(self, node: ast.expr) -> Judgement:
        if _is_literal(node):
            return Known(ast.literal_eval(node))
        self.expected.append(ast.unparse(node))
        return Reply("expected", len(self.expected) - 1)

    def uses_program(self, node: ast.AST) -> bool:
        """Whether the expression names anything that only the program can define."""
        bound = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)}
        bound |= {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)} | self.setup_names
        modules = {id(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        return any(
            name.id in self.shadowed
            or not (name.id in bound or hasattr(builtins, name.id) or (id(name) in modules and name.id in sys.stdlib_module_names))
            for name in ast.walk(node)
            if isinstance(name, ast.Name)
        )

    def _is_program_call(self, node: ast.expr) -> bool:
        """`f(x)`, `g.f(x)[0]`, and `isinstance(f(x), int)`; but not `operator.eq(f(x), 3)`."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _REVEAL_NOTHING:
                return self._is_program_call(first) or isinstance(first, ast.Name)
            case ast.Call(func=ast.Name() as name):
                return self.uses_program(name)
            case ast.Call(func=ast.Attribute(value=owner)):
                return isinstance(owner, ast.Name) and self.uses_program(owner)
            case ast.Subscript(value=owner) | ast.Call(func=ast.Call() as owner):
                return self._is_program_call(owner)
        return isinstance(node, ast.Name)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_isclose(function: ast.expr) -> bool:
    return ast.unparse(function) in {"isclose", "math.isclose"}


def _compares(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _is_isclose(node.func))


def _outside_lambdas(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside lambdas: a comparison in a lambda is an argument of the program, not a judgement on it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield from _outside_lambdas(child)
