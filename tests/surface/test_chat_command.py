"""`tokencredit chat`: text as it is drawn, put as a run put its problems, remembered where the model can, harmless for a terminal."""

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
import torch

from engine.runs import run, small_config
from fault.command import assert_refused, main_with
from forked import run_forked
from tiny import tiny_policy
from tokencredit.commands import chat
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.policy.prompting import Prompting
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout import stream as module
from tokencredit.rollout.sampler import sample
from tokencredit.rollout.stream import Conversation, draw, stream
from tokencredit.tasks import Steps

QUESTION = "6+4-3-9-2="


@pytest.fixture(scope="module")
def base() -> Policy:
    return load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")


def typed(text: str, *arguments: str, cwd: Path) -> CompletedProcess[str]:
    return run_forked(partial(_typing, text, arguments), cwd=cwd)


def _typing(text: str, arguments: tuple[str, ...]) -> None:
    sys.stdin = io.StringIO(text)
    main_with("chat", *arguments)


def test_what_is_drawn_is_what_the_sampler_would_draw(base: Policy) -> None:
    prompts = [problem.prompt for problem in Steps().problems(4, split="held-out", seed=2)]
    for prompt in prompts:
        ids = base.ask(prompt)
        rollouts = sample(base, [ids], SamplingParams(group_size=1, max_new_tokens=40, seed=0, greedy=True)).rollouts
        assert list(draw(base, ids, max_new_tokens=40, temperature=0.0, seed=0)) == rollouts.tokens[0][rollouts.mask[0]].tolist()
    ids = base.ask(QUESTION)
    for seed in range(4):
        rollouts = sample(base, [ids], SamplingParams(group_size=1, max_new_tokens=40, seed=seed, temperature=1.3)).rollouts
        assert list(draw(base, ids, max_new_tokens=40, temperature=1.3, seed=seed)) == rollouts.tokens[0][rollouts.mask[0]].tolist()


def test_pieces_come_one_by_one_and_join_to_the_response(base: Policy) -> None:
    ids = base.ask(QUESTION)
    pieces = list(stream(base, ids, max_new_tokens=40, temperature=0.0, seed=0))
    assert "".join(pieces) == base.decode(list(draw(base, ids, max_new_tokens=40, temperature=0.0, seed=0)))
    assert len(pieces) > 20
    assert list(stream(base, ids, max_new_tokens=3, temperature=0.0, seed=0)) == pieces[:3]


def test_a_stop_string_is_never_shown_not_even_its_beginning(base: Policy) -> None:
    ids = base.ask(QUESTION)
    whole = "".join(stream(base, ids, max_new_tokens=40, temperature=0.0, seed=0))
    stop = whole[8:12]
    pieces = list(stream(replace(base, stops=(stop,)), ids, max_new_tokens=40, temperature=0.0, seed=0))
    assert "".join(pieces) == whole[: whole.index(stop)]
    begun = replace(base, stops=(whole[8:10] + "never",))
    assert "".join(stream(begun, ids, max_new_tokens=40, temperature=0.0, seed=0)) == whole


class Bytes:
    """A decoder of single bytes, as byte-level tokenizers are."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def test_half_a_character_waits_for_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list("aé\U0001f600b".encode())

    def drawing(*_: object, **__: object) -> Iterator[int]:
        yield from said

    monkeypatch.setattr(module, "draw", drawing)
    policy = replace(tiny_policy(), tokenizer=Bytes(), end_tokens=())  # pyright: ignore[reportArgumentType]
    assert list(stream(policy, [1], max_new_tokens=9, temperature=0.0, seed=0)) == ["a", "é", "\U0001f600", "b"]


TEMPLATE = "{% for m in messages %}{{ {'user': 'a', 'assistant': 'b', 'system': '#'}[m.role] }}{{ m.content }};{% endfor %}b"


def test_a_chat_model_remembers_and_starts_over() -> None:
    policy = tiny_policy()
    policy.tokenizer.chat_template = TEMPLATE
    policy = replace(policy, prompting=Prompting(chat=True, system="9"))
    talk = Conversation(policy, remembers=True)
    assert talk.ask("1+1=") == policy.encode("#9;a1+1=;b")
    talk.heard("1+1=", "2")
    assert talk.ask("2+2=") == policy.encode("#9;a1+1=;b2;a2+2=;b")
    talk.start_over()
    assert talk.ask("2+2=") == policy.encode("#9;a2+2=;b")
    forgetful = Conversation(policy, remembers=False)
    forgetful.heard("1+1=", "2")
    assert forgetful.ask("2+2=") == policy.encode("#9;a2+2=;b")


def test_what_a_model_cannot_read_is_refused() -> None:
    talk = Conversation(tiny_policy(), remembers=False)
    for text, words in (("1+1=" * 40, "128 tokens"), ("hello", "no tokens for"), ("", "no tokens for"), ("1\udce9", "no text")):
        with pytest.raises(ConfigError, match=words):
            talk.ask(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(
        small_config(steps=1, prompt={"few_shot": 2, "separator": ";"}, sampling={"prompts": 6, "group_size": 4, "max_new_tokens": 12}),
        folder,
    )
    return folder


def test_ask_answers_once(base: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert chat.run(["steps-shift", "--ask", QUESTION, *arguments]) == 0
        return capsys.readouterr().out

    assert said() == "".join(stream(base, base.ask(QUESTION), max_new_tokens=40, temperature=0.0, seed=0)) + "\n"
    assert said("--max-new-tokens", "4") == said()[:4] + "\n"
    assert len({said("--temperature", "2", "--seed", seed) for seed in "001"}) == 2


def test_a_run_is_asked_as_it_was_trained(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def spying(policy: Policy, prompt: list[int], *, max_new_tokens: int, **_: object) -> Iterator[str]:
        seen.append(prompt)
        yield str(max_new_tokens)

    monkeypatch.setattr(module, "stream", spying)
    from engine.runs import trainer_of
    from tokencredit.config.resolve import read_toml, resolve

    trainer = trainer_of(resolve([read_toml(trained / "config.toml")]))
    assert chat.run([str(trained), "--ask", QUESTION]) == 0
    assert chat.run([str(trained), "--ask", QUESTION, "--raw"]) == 0
    framed, raw = seen
    assert framed == trainer.policy.ask(QUESTION)
    assert len(framed) > 3 * len(raw)
    assert raw == trainer.policy.encode(QUESTION)


def test_lines_are_answered_until_the_end_of_them(tmp_path: Path) -> None:
    done = typed(f"{QUESTION}\n\n/new\n/nonsense\nhello\n{QUESTION}\n", "steps-shift", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer, nonsense, unreadable, again = done.stdout.splitlines()
    assert answer == again
    assert answer.count("=") == 4
    assert "Unknown command /nonsense" in nonsense
    assert "no tokens for 'hello'" in unreadable
    left = typed(f"/quit\n{QUESTION}\n", "steps-shift", cwd=tmp_path)
    assert (left.returncode, left.stdout) == (0, "")


def test_what_a_model_writes_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = ["\x1b", "[2J", "one\n", "tw", "o\u202e", "e\u0301", "\u0301", "\u0301", "\r"]
    monkeypatch.setattr(module, "stream", lambda *_, **__: iter(pieces))
    talk = SimpleNamespace(policy=None, ask=lambda text: [1], room=lambda: 9, heard=lambda *_: None)
    chat._answer(talk, "x", chat.ChatOptions(model="m"), 8, turn=0)  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out == "␛[2Jone\ntwo⟨U+202E⟩e\u0301\u0301⟨U+0301⟩␍\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing-here", "--ask", "x"], "neither a shipped base nor a folder"),
        (["steps-shift", "--ask", "hello"], "no tokens for 'hello'"),
        (["steps-shift", "--raw", "--system", "x"], "leave one of them out"),
        (["steps-shift", "--temperature", "-1", "--ask", "1"], "temperature"),
    ],
)
def test_mistakes_are_refused_in_words(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert_refused(["chat", *arguments], words, tmp_path)
