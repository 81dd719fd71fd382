"""How a problem is put to the model, and what of a response is graded."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny import tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.prompting import TAGS_INSTRUCTION, Prompting, Shot, encode_plain, render_reply, with_prompting
from tokencredit.rollout.multi_turn import encode_reply
from tokencredit.tasks import Problem, Split, Steps
from tokencredit.tasks.split import split_of
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.trainer.token_table import label_tokens
from tokencredit.types import Rollouts

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LETTERS = "".join(sorted({*"abcdefghijklmnopqrstuvwxyz0123456789+-=[]<>/#:;,?. THES"}))


def chatting() -> Policy:
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = TEMPLATE
    return replace(tiny_policy(), tokenizer=tokenizer)


def text_of(policy: Policy, prompt: str) -> str:
    return str(policy.tokenizer.decode(policy.ask(prompt)))


def test_plain_shots_stand_before_the_question_and_never_answer_it() -> None:
    shots = (Shot("1+1=", "2"), Shot("2+2=", "4"), Shot("3+3=", "6"))
    prompting = Prompting(shots=shots, few_shot=2, separator=";")
    assert prompting.text("5+5=") == "1+1=2;2+2=4;5+5="
    assert prompting.text("2+2=") == "1+1=2;3+3=6;2+2="
    assert prompting.text(" 2+2= ") == "1+1=2;3+3=6; 2+2= "
    assert replace(prompting, system="add").text("5+5=") == "add\n\n1+1=2;2+2=4;5+5="


def test_a_chat_template_is_given_system_shots_and_question() -> None:
    policy = chatting()
    prompting = Prompting(chat=True, system="be brief", shots=(Shot("1+1=", "2"), Shot("2+2=", "4")), few_shot=1)
    asked = text_of(replace(policy, prompting=prompting), "7+1=")
    assert asked == "[system]be brief<eos>[user]1+1=<eos>[assistant]2<eos>[user]7+1=<eos>[assistant]"


def test_a_reply_continues_the_conversation_and_ends_a_turn_once() -> None:
    tokenizer = chatting().tokenizer
    assert render_reply(tokenizer, "no", ended_by="<eos>") == "[user]no<eos>[assistant]"
    assert render_reply(tokenizer, "no") == "<eos>[user]no<eos>[assistant]"


def test_the_token_that_begins_every_text_is_put_first_where_the_tokenizer_has_one() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = character_tokenizer("012+=")
    assert encode_plain(tokenizer, "1+1=") == tokenizer.encode("1+1=", add_special_tokens=False)
    tokenizer.bos_token = "<pad>"
    begin = tokenizer.bos_token_id
    assert encode_plain(tokenizer, "1")[0] != begin
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="<pad> $A <eos>", special_tokens=[("<pad>", begin), ("<eos>", 1)])
    assert encode_plain(tokenizer, "1") == [begin, *tokenizer.encode("1", add_special_tokens=False)]


@pytest.mark.parametrize(
    ("text", "answer", "kept"),
    [
        ("<think>7</think><answer>5</answer>", "5", True),
        (" <think>a\nb</think>\n<answer>5</answer>\n", "5", True),
        ("<answer>1</answer> no <answer>2</answer>", "2", False),
        ("<think></think><answer>1</answer><answer>2</answer>", "2", False),
        ("5", "", False),
        ("<answer>5", "", False),
        ("<answer><answer>5</answer>", "5", False),
        ("<think>so <answer>42</answer> maybe", "", False),
        ("<think>so <answer>42</answer></think><answer>7</answer>", "7", False),
        ("<think>a</think><answer>1</answer><think>b</think><answer>2</answer>", "2", False),
        ("<think></think><answer>1</answer> junk </answer>", "1", False),
        ("<think>x</think><answer></answer>", "", True),
    ],
)
def test_only_what_the_last_answer_tags_hold_is_graded(text: str, answer: str, kept: bool) -> None:
    prompting = Prompting(tags=True)
    start, end = prompting.answer_in(text)
    assert (text[start:end], prompting.well_formed(text)) == (answer, kept)
    assert Prompting().answer_in(text) == (0, len(text))
    assert Prompting().well_formed(text)


@given(st.text(alphabet="ab<>/answerthink ", max_size=60))
def test_what_is_written_for_a_demonstration_is_read_back(demonstration: str) -> None:
    prompting = Prompting(tags=True)
    if "<answer>" in demonstration or "</answer>" in demonstration:
        return
    written = prompting.written(demonstration)
    start, end = prompting.answer_in(written)
    assert written[start:end] == demonstration
    assert prompting.well_formed(written)


def test_tags_are_asked_for_in_words() -> None:
    assert Prompting(tags=True).messages("q")[0] == {"role": "system", "content": TAGS_INSTRUCTION}
    assert Prompting(tags=True, system="hello").text("q") == f"hello\n{TAGS_INSTRUCTION}\n\nq"


def test_a_configuration_decides_style_shots_and_stops() -> None:
    task, policy = Steps(), chatting()

    def put(**changes: object) -> Policy:
        return with_prompting(policy, resolve([{"prompt": changes, "sampling": {"stop": [";;"]}}]), task)

    assert put().prompting.chat
    assert not put(style="plain").prompting.chat
    assert put().stops == (";;",)
    shown = put(style="plain", few_shot=2).prompting
    assert len(shown.shots) == 3
    assert all(split_of(shot.prompt) == "train" and shot.response.endswith("#" + _answer(task, shot.prompt)) for shot in shown.shots)
    assert shown == put(style="plain", few_shot=2).prompting
    with pytest.raises(ConfigError, match=r"prompt.style is 'chat' but the tokenizer of model 'steps-shift' has no chat template"):
        with_prompting(tiny_policy(), resolve([{"prompt": {"style": "chat"}}]), task)
    assert not with_prompting(tiny_policy(), resolve([{}]), task).prompting.chat


def _answer(task: Steps, prompt: str) -> str:
    from tokencredit.tasks.steps import apply, chain_of

    value, chain = chain_of(prompt)
    for op, right in chain:
        value = apply(value, op, right)
    return str(value)


def test_a_task_without_demonstrations_cannot_be_shown() -> None:
    class Bare:
        def problems(self, count: int, *, split: str, seed: int) -> list[Problem]:
            return [Problem(prompt="1", answer="1")] * count

        def grade(self, problem: Problem, response: str) -> float:
            return 0.0

        def token_class(self, problem: Problem, response: str) -> list[str]:
            return []

    class OneProblem(Bare):
        def demonstrate(self, problem: Problem, *, seed: int) -> str:
            return "1"

    config = resolve([{"prompt": {"few_shot": 1}}])
    with pytest.raises(ConfigError, match=r"prompt.few_shot is 1 but task 'steps' has no demonstrations"):
        with_prompting(tiny_policy(), config, Bare())
    with pytest.raises(ConfigError, match="gave only 1 different training problems"):
        with_prompting(tiny_policy(), config, OneProblem())


def test_tokens_outside_of_the_answer_are_labelled_as_thinking_and_stops_as_stop() -> None:
    policy = replace(chatting(), prompting=Prompting(tags=True), stops=(".",))
    ids = policy.encode("<think>hm</think><answer>a:1+1=2;#2</answer>.")
    rollouts = Rollouts(
        prompts=((3, 4),),
        tokens=torch.tensor([ids]),
        mask=torch.ones(1, len(ids), dtype=torch.bool),
        group=torch.zeros(1, dtype=torch.long),
        behavior_logp=torch.zeros(1, len(ids)),
        finished=torch.ones(1, dtype=torch.bool),
    )
    labels = label_tokens(policy, Steps(), [Problem(prompt="1+1=", answer="2")], rollouts)
    assert labels.token_class[: len("<think>hm</think><answer>")] == ["thinking"] * 25
    assert labels.token_class[25:27] == ["preamble", "preamble"]
    assert labels.token_class[25 + 6] == "result"
    assert labels.step_right[25 + 6] is True
    assert labels.token_class[-1] == "stop"
    assert labels.token_class[-10:-1] == ["thinking"] * 9
    assert policy.answer(ids) == "a:1+1=2;#2"


def test_a_stop_that_closes_the_answer_is_read_with_it() -> None:
    policy = replace(chatting(), prompting=Prompting(tags=True), stops=("</answer>",))
    ids = policy.finish(policy.prompting.written("46"))
    assert policy.tokenizer.decode(ids) == "<think></think><answer>46</answer>"
    assert policy.answer(ids) == "46"
    assert policy.prompting.well_formed(policy.decode(ids))
    plain = replace(policy, prompting=Prompting())
    assert plain.answer(policy.encode("46</answer>")) == "46"
    with pytest.raises(ConfigError, match="would end a response inside the tags"):
        resolve([{"prompt": {"tags": True}, "sampling": {"stop": ["answer>"]}}])


def test_a_whole_response_ends_where_the_policy_s_own_would() -> None:
    policy = replace(chatting(), stops=(".",))
    assert policy.tokenizer.decode(policy.finish("a.b")) == "a."
    assert policy.tokenizer.decode(policy.finish("a")) == "a."
    # Some chat models end a turn with another token than the one that ends a text.
    unlike = replace(chatting(), end_tokens=(0, 1))
    unlike.tokenizer.eos_token = "<pad>"
    assert replace(unlike, prompting=Prompting(chat=True)).finish("a")[-1] == 1
    assert unlike.finish("a")[-1] == 0
    chat = replace(unlike, prompting=Prompting(chat=True))
    assert chat.tokenizer.decode(encode_reply(chat, "no", after=[5, 1])) == "[user]no<eos>[assistant]"


def test_shots_that_ask_the_same_count_as_one() -> None:
    class Doubled(Steps):
        def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
            found = Steps.problems(self, 3, split=split, seed=seed)
            return [found[0], replace(found[0], prompt=found[0].prompt + " "), *found[1:]]

        def demonstrate(self, problem: Problem, *, seed: int) -> str:
            return problem.answer

    shown = with_prompting(tiny_policy(), resolve([{"prompt": {"few_shot": 2}}]), Doubled()).prompting
    assert len({shot.prompt.strip() for shot in shown.shots}) == 3
