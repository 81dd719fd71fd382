"""Runs inside the sandbox: executes the program, then evaluates questions about it. Shipped as text, so it imports nothing of ours.

Standard input: {"setup", "program", "questions": [expression, ...], "import_missing"}. Standard output: one line of JSON, per
question ["value", description] or ["error", name of the exception]. It holds no expected answer and reaches no verdict, so it has
nothing to hide from the program.
"""

import json
import os
import sys
from collections.abc import ItemsView, KeysView


def is_a(value, module, name):
    """Without importing the module, which would take longer than most programs: a value of its class means it is loaded."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


def described(value):
    """The description that `values.py` rebuilds. It calls the base class's methods, so that a subclass counts as plain data."""
    if value is None:
        return ["none"]
    if isinstance(value, bool):
        return ["bool", int(value)]
    if isinstance(value, int):
        return ["int", hex(int.__int__(value))]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, list):
        return ["list", *map(described, list.__iter__(value))]
    if isinstance(value, tuple):
        return ["tuple", *map(described, tuple.__iter__(value))]
    if isinstance(value, frozenset):
        return ["frozenset", *map(described, frozenset.__iter__(value))]
    if isinstance(value, set):
        return ["set", *map(described, set.__iter__(value))]
    if isinstance(value, dict):
        return ["dict", *(described(part) for pair in dict.items(value) for part in pair)]
    if isinstance(value, (KeysView, ItemsView)):
        return ["set", *map(described, value)]
    if isinstance(value, range):
        return ["range", hex(value.start), hex(value.stop), hex(value.step)]
    if is_a(value, "fractions", "Fraction"):
        return ["fraction", hex(value.numerator), hex(value.denominator)]
    if is_a(value, "decimal", "Decimal"):
        return ["decimal", str(value)]
    return ["opaque", type(value).__name__, int(bool(value))]


def names_in(question):
    return compile(question, "question", "eval").co_names


def answered(question, module):
    try:
        return ["value", described(eval(question, module.__dict__))]
    except BaseException as failure:
        return ["error", type(failure).__name__]


def answer_all():
    request = json.load(sys.stdin)
    answers = os.dup(1)
    # What the program prints must not reach the answers.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    module = sys.modules["solution"] = type(sys)("solution")
    # Run the setup before and after the program: a program may need its imports, and it (MBPP's trees) the program's classes.
    try:  # noqa: SIM105, contextlib would have to be imported
        exec(request["setup"], module.__dict__)
    except Exception:
        pass
    for text in (request["program"], request["setup"]):
        exec(compile(text, "solution.py", "exec"), module.__dict__)
    if request["import_missing"]:
        for name in sys.stdlib_module_names.intersection(word for question in request["questions"] for word in names_in(question)):
            module.__dict__.setdefault(name, __import__(name))
    reply = json.dumps([answered(question, module) for question in request["questions"]]).encode()
    while reply:
        reply = reply[os.write(answers, reply) :]
    # Leave without running the program's threads and exit handlers.
    os._exit(0)


if __name__ == "__main__":
    answer_all()
