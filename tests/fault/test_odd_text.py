"""Odd tokenizers and odd answers through the local engine: counts, joins, labels and files are right, not merely there."""

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tiny import made_up_credit, plan_for
from tokencredit.config.resolve import resolve, to_toml
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.report.page import render
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import StepTokens, plan_grid, read_step
from tokencredit.rollout.sampler import sample
from tokencredit.rollout_io.read import read_rollouts
from tokencredit.rollout_io.write import rollout_rows, write_rows
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import Problem, step_verdicts
from tokencredit.tasks.cotadd import CotAdd
from tokencredit.tasks.steps import Steps
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.trainer.token_table import TokenLabels, label_tokens, token_columns
from tokencredit.types import Rollouts

ODD = "a\x00\u2028\x85\u202eé🙂\u0301\u200dء\t"
"""A letter, a NUL, line separators, a bidi override, an accent, an emoji, a combining mark, a joiner, an Arabic letter, a tab."""

PROBLEM = Problem(prompt="1+1=", answer="2")


def model_of(vocabulary: int, dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, initializer_range=0.5, **shape, **ids)).to(dtype).eval()


def character_policy(alphabet: str = ODD) -> Policy:
    tokenizer = character_tokenizer(alphabet)
    return Policy(model=model_of(len(tokenizer)), tokenizer=tokenizer, end_tokens=(int(tokenizer.eos_token_id),))


def byte_policy() -> Policy:
    """One token per byte, as byte-level BPE falls back to; no pad token."""
    vocabulary = {piece: index for index, piece in enumerate(("<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    return Policy(model=model_of(len(fast)), tokenizer=fast, end_tokens=(0,))


def rollouts_of(policy: Policy, answers: list[list[int]]) -> Rollouts:
    """Two responses to each prompt, as if they had been sampled."""
    width = max(map(len, answers))
    return Rollouts(
        prompts=tuple((3 + index // 2,) for index in range(len(answers))),
        tokens=torch.tensor([answer + [0] * (width - len(answer)) for answer in answers]),
        mask=torch.tensor([[place < len(answer) for place in range(width)] for answer in answers]),
        group=torch.arange(len(answers)) // 2,
        behavior_logp=torch.full((len(answers), width), -1.0, dtype=torch.float64),
        finished=torch.tensor([answer[-1] in policy.end_tokens for answer in answers]),
    )


def stored(folder: Path, rollouts: Rollouts, labels: TokenLabels, prompts: list[str]) -> Run:
    """A run of one step that received these responses."""
    credited = made_up_credit(rollouts)
    plan = plan_for(credited, max_tokens=1_000_000, optimizer_steps=1)
    target = RunDir(folder)
    target.create(to_toml(resolve([{}])))
    target.append_plan(1, plan)
    problems = [Problem(prompt=prompt, answer="") for prompt in prompts]
    target.write_tokens(1, token_columns(1, credited, plan, labels, problems))
    return Run(folder)


def responses(tokens: StepTokens) -> list[str]:
    """Pieces joined, row after row."""
    texts = tokens.columns["text"]
    return ["".join(texts[response.start : response.stop]) for response in tokens.responses]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_odd_characters_survive_the_way_to_the_file_and_the_page(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = character_policy()
    monkeypatch.setattr("tokencredit.storage.run_dir.best_suffix", lambda: suffix)
    answers = [[*policy.encode(ODD), 1], policy.encode(ODD[::-1]), [1], policy.encode("a")]
    rollouts = rollouts_of(policy, answers)
    labels = label_tokens(policy, Steps(), [PROBLEM, PROBLEM], rollouts)
    run = stored(tmp_path / "run", rollouts, labels, [ODD, "\u202e" + ODD])
    tokens = read_step(run, 1)
    assert responses(tokens) == [ODD + "<eos>", ODD[::-1], "<eos>", "a"]
    assert [len(answer) for answer in answers] == [response.stop - response.start for response in tokens.responses]
    assert tokens.columns["token_id"] == [token for answer in answers for token in answer]
    assert [tokens.prompt(group) for group in (0, 1)] == [ODD, "\u202e" + ODD]
    grid = plan_grid(run, tokens)
    assert grid["unplaced"] == 0
    assert sum(map(sum, grid["cells"][0])) == len(answers)
    page = render([run])
    assert not any(hidden in page for hidden in ("\u202e", "\x00", "\u2028", "\x85"))
    assert "⟨U+202E⟩" in page
    assert "␀" in page


def test_only_an_end_token(tmp_path: Path) -> None:
    """A response that ends at once has one token, which is its end, and no text."""
    policy = character_policy("0123456789")
    rollouts = rollouts_of(policy, [[1], [1]])
    labels = label_tokens(policy, Steps(), [PROBLEM], rollouts)
    assert labels == TokenLabels(["<eos>"] * 2, ["end"] * 2, [None] * 2)
    assert policy.decode([1]) == ""
    assert Steps().grade(PROBLEM, "") == CotAdd().grade(PROBLEM, "") == 0.0
    assert responses(read_step(stored(tmp_path / "run", rollouts, labels, ["1"]), 1)) == ["<eos>"] * 2


def _always(policy: Policy, token: int) -> Policy:
    """Draws one token, whatever came before."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
        head = policy.model.lm_head
        head.bias = torch.nn.Parameter(torch.full((head.out_features,), -1e4, dtype=head.weight.dtype))
        head.bias[token] = 0.0
    return policy


def test_a_policy_that_ends_at_once_and_one_that_never_ends() -> None:
    ends = sample(_always(character_policy("012"), 1), [[3], [4, 5]], SamplingParams(group_size=2, max_new_tokens=5, seed=0)).rollouts
    assert ends.tokens.tolist() == [[1]] * 4
    assert ends.finished.tolist() == [True] * 4
    goes_on = sample(_always(character_policy("012"), 3), [[3], [4, 5]], SamplingParams(group_size=2, max_new_tokens=5, seed=0)).rollouts
    assert goes_on.tokens.tolist() == [[3] * 5] * 4
    assert goes_on.mask.all()
    assert goes_on.finished.tolist() == [False] * 4


@pytest.mark.parametrize(("ends", "finished"), [((1,), False), ((999,), False), ((1, 999, 3), True), ((3,), True)])
def test_any_of_several_end_tokens_ends_a_response_and_one_beyond_the_vocabulary_never_does(ends: tuple[int, ...], finished: bool) -> None:
    policy = _always(character_policy("012"), 3)
    policy = Policy(model=policy.model, tokenizer=policy.tokenizer, end_tokens=ends)
    rollouts = sample(policy, [[3]], SamplingParams(group_size=2, max_new_tokens=4, seed=0)).rollouts
    labels = label_tokens(policy, Steps(), [PROBLEM], rollouts)
    assert rollouts.finished.tolist() == [finished] * 2
    assert rollouts.mask.sum(-1).tolist() == [1 if finished else 4] * 2
    assert labels.token_class == (["end"] * 2 if finished else ["other"] * 8)


def test_a_vocabulary_of_one_token() -> None:
    tokenizer = character_tokenizer("0")
    policy = Policy(model=model_of(1), tokenizer=tokenizer, end_tokens=(0,))
    sampled = sample(policy, [[0], [0, 0]], SamplingParams(group_size=2, max_new_tokens=3, seed=0))
    assert sampled.rollouts.tokens.tolist() == [[0]] * 4
    assert sampled.evidence.logp.tolist() == sampled.evidence.entropy.tolist() == [[0.0]] * 4
    scored = score_rows(policy.model, sampled.rollouts, temperature=1.0, max_tokens=100)
    assert scored.logp.tolist() == [[0.0]] * 4


def test_no_pad_token_and_prompts_of_two_lengths() -> None:
    """Padding is never looked at: each prompt is answered as it would be alone."""
    policy = byte_policy()
    assert policy.tokenizer.pad_token_id is None
    together = sample(policy, [[5], [6, 7, 8, 9]], SamplingParams(group_size=1, max_new_tokens=6, seed=0, greedy=True))
    for row, prompt in enumerate(([5], [6, 7, 8, 9])):
        alone = sample(policy, [prompt], SamplingParams(group_size=1, max_new_tokens=6, seed=0, greedy=True))
        assert together.rollouts.tokens[row].tolist() == alone.rollouts.tokens[0].tolist()
        torch.testing.assert_close(together.evidence.logp[row], alone.evidence.logp[0])


def test_a_special_token_inside_a_response_is_text_and_the_last_one_is_the_end() -> None:
    policy = character_policy("0123456789")
    rollouts = rollouts_of(policy, [[4, 1, 5, 0, 2, 1], [4]])
    labels = label_tokens(policy, Steps(), [PROBLEM], rollouts)
    assert labels.text == ["1", "<eos>", "2", "<pad>", "<unk>", "<eos>", "1"]
    assert labels.token_class == ["other"] * 5 + ["end", "other"]
    assert policy.decode([4, 1, 5, 0, 2, 1]) == "1<eos>2<pad><unk>"


@pytest.mark.parametrize("text", ["plain", "é", "🙂", "a🙂b", "e\u0301", "\u202eabc", "a\x00b", "👩‍👩‍👧", "🙂"[:1] * 3])
def test_bytes_of_one_character_are_tokens_of_their_own(tmp_path: Path, text: str) -> None:
    """There is an entry for every token, whatever it spells; ids and counts go through a rollout file and back."""
    policy = byte_policy()
    answer = policy.encode(text)
    assert len(answer) == len(text.encode())
    assert policy.decode(answer) == text
    rollouts = rollouts_of(policy, [[*answer, 0], answer[:-1] or answer])
    labels = label_tokens(policy, Steps(), [PROBLEM], rollouts)
    assert [len(column) for column in labels] == [int(rollouts.mask.sum())] * 3
    assert labels.token_class[len(answer)] == "end"
    path = tmp_path / "rollouts.jsonl"
    write_rows(path, rollout_rows(rollouts, torch.tensor([1.0, 0.0]), responses=[text, None]))
    back = read_rollouts(path, policy)
    assert back.rollouts.tokens[back.rollouts.mask].tolist() == rollouts.tokens[rollouts.mask].tolist()
    assert back.responses[0] == text
    assert back.rollouts.finished.tolist() == [True, False]


def test_an_answer_of_100_000_characters(tmp_path: Path) -> None:
    """Labels, file and page of it within seconds; the page keeps its beginning and says how long it was."""
    policy = character_policy("0123456789")
    began = time.monotonic()
    long = policy.encode("0123456789" * 10_000)
    rollouts = rollouts_of(policy, [[*long, 1], [4, 1]])
    labels = label_tokens(policy, Steps(), [PROBLEM], rollouts)
    run = stored(tmp_path / "run", rollouts, labels, ["1"])
    tokens = read_step(run, 1)
    assert len(tokens.columns["row"]) == 100_003
    assert responses(tokens)[0] == "0123456789" * 10_000 + "<eos>"
    page = render([run])
    assert len(page.encode()) < 5_000_000
    assert '"length":[100001,2]' in page or '"length":[2,100001]' in page
    assert time.monotonic() - began < 120


CHARACTERS = st.characters(codec="utf-8") | st.sampled_from("0123456789+-=:;,#abr")


@given(response=st.text(CHARACTERS, max_size=40) | st.from_regex(r"[ab]:(\d[+-]\d=\d[;,]{0,2}){0,5}(#\d)?.{0,3}", fullmatch=True))
def test_tasks_label_every_character_of_any_text(response: str) -> None:
    steps, adding = Steps(), CotAdd()
    problem = Problem(prompt="6+4-3=", answer="7")
    for task in (steps, adding):
        assert len(task.token_class(problem, response)) == len(response)
        assert task.grade(problem, response) in (0.0, 1.0)
    starts = steps.step_starts(problem, response)
    assert starts == sorted(set(starts))
    assert all(0 <= start < len(response) for start in starts)
    assert len(step_verdicts(steps, problem, response)) == len(response)
    assert steps.grade(problem, response) == float(response[-2:] == "#7")
    assert adding.grade(problem, response) == float(response.split(";")[-1] == "7")
    labels = steps.token_class(problem, response)
    assert all(label == "answer" for label in labels[response.index("#") :]) if "#" in response else "answer" not in labels
    assert all(response[place] in "0123456789" for place, label in enumerate(labels) if label in ("copy", "operand", "result"))


@pytest.mark.parametrize("digit", ["٣", "３", "³", "௩"])
def test_digits_of_other_scripts_are_no_digits(digit: str) -> None:
    """`str.isdigit` holds for them, and int() reads most of them."""
    assert Steps().token_class(PROBLEM, f"{digit}+1={digit}") == ["other"] * 5
    assert Steps().step_truth(PROBLEM, f"1+1={digit}") == []
    assert Steps().grade(Problem(prompt="1+2=", answer="3"), f"#{digit}") == 0.0


@pytest.mark.parametrize("text", ["🙂", "aé🙂 b", ODD, "é" * 50, "日本語 and more", "\ufffd"])
def test_the_pieces_of_tokens_that_are_parts_of_characters_join_to_the_text(text: str) -> None:
    policy = byte_policy()
    tokens = policy.encode(text)
    assert len(tokens) == len(text.encode())
    pieces = policy.pieces(tokens)
    assert "".join(pieces) == text
    assert len(pieces) == len(tokens)


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    policy = byte_policy()
    assert policy.pieces(policy.encode("a🙂b")) == ["a", "", "", "", "🙂", "b"]


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="a prompt has no tokens"):
        sample(byte_policy(), [[3], []], SamplingParams(group_size=1, max_new_tokens=2, seed=0))
