"""The parts of the bench that need neither verl nor Ray."""

import asyncio
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from tokencredit.models import model_folder
from tokencredit.policy.policy import load_policy
from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import Steps
from verl_cpu.command import read_metrics
from verl_cpu.integrity import group_integrity, read_mini_batches
from verl_cpu.reward import compute_score
from verl_cpu.scene import make_scene
from verl_cpu.server import Generated, HuggingFaceServer
from verl_cpu.when_imported import when_imported

SAMPLING = {"temperature": 1.0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
PROMPTS = ("6+4=", "1-2+3-4=", "9+9-9=", "6+4=", "0-1=")


def answers(server: HuggingFaceServer, prompts: list[list[int]], **sampling: float) -> list[Generated]:
    async def ask() -> list[Generated]:
        asked = [server.generate(prompt_ids=prompt, sampling_params={**SAMPLING, **sampling}, request_id="") for prompt in prompts]
        return await asyncio.wait_for(asyncio.gather(*asked), 60)

    return asyncio.run(ask())


@pytest.fixture
def server() -> HuggingFaceServer:
    return HuggingFaceServer(str(model_folder("steps-shift")), max_new_tokens=24, seed=3)


def test_prompts_reach_verl_as_the_ids_the_local_engine_uses(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", problems=20)
    tokenizer = AutoTokenizer.from_pretrained(scene.model)
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    rows = pq.read_table(scene.train).to_pylist()
    asked = [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"] for row in rows]
    problems = Steps().problems(20, split="train", seed=0)
    assert asked == [policy.encode(problem.prompt) for problem in problems]
    assert scene.prompt_tokens == max(map(len, asked))
    assert [row["reward_model"]["ground_truth"] for row in rows] == [problem.answer for problem in problems]
    assert (tokenizer.eos_token_id,) == policy.end_tokens


def test_reward_is_the_verdict_of_the_task() -> None:
    problem = Problem(prompt="6+4=", answer="0")
    for response in ("a:6+4=0;#0", "a:6+4=1;#1", "#0 ", ""):
        asked = {"data_source": "steps", "ground_truth": "0", "extra_info": {"prompt": "6+4="}}
        assert compute_score(solution_str=response, **asked) == Steps().grade(problem, response)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_answers_of_one_batch_carry_the_log_probs_of_each_alone(server: HuggingFaceServer, temperature: float) -> None:
    prompts = [server.policy.encode(prompt) for prompt in PROMPTS]
    before = server.seed
    for prompt, answer in zip(prompts, answers(server, prompts, temperature=temperature), strict=True):
        ids = torch.tensor([prompt + answer.token_ids])
        with torch.no_grad():
            logp = (server.policy.model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
        expected = logp.gather(-1, ids[0, len(prompt) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)
        ended = answer.token_ids[-1] in server.policy.end_tokens
        assert answer.stop_reason == ("completed" if ended else "length")
        assert ended or len(answer.token_ids) == 24
    assert server.seed == before + 1, "one batch"


def test_temperature_zero_takes_the_likeliest_token(server: HuggingFaceServer) -> None:
    prompt = server.policy.encode("6+4-3=")
    (answer,) = answers(server, [prompt], temperature=0)
    logits = server.policy.model(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1]
    assert answer.token_ids == logits.argmax(-1).tolist()


def test_a_failure_reaches_every_request_instead_of_leaving_it_waiting(server: HuggingFaceServer) -> None:
    with pytest.raises(IndexError):
        answers(server, [[3, 999]])
    with pytest.raises(ValueError, match="top_p"):
        answers(server, [[3]], top_p=0.9)


def test_weights_that_do_not_fit_are_refused(server: HuggingFaceServer) -> None:
    weights = {name: weight + 1 for name, weight in server.policy.model.state_dict().items()}
    asyncio.run(server.load_weights(weights, 7))
    assert all(torch.equal(weights[name], weight) for name, weight in server.policy.model.state_dict().items())
    assert answers(server, [[3]])[0].extra_fields == {"global_steps": 7}
    with pytest.raises(ValueError, match="do not fit"):
        asyncio.run(server.load_weights({**weights, "stranger": torch.zeros(1)}, 8))
    weights.pop("model.layers.0.mlp.up_proj.weight")
    with pytest.raises(ValueError, match="do not fit"):
        asyncio.run(server.load_weights(weights, 8))


def write_record(folder: Path, *ranks: list[list[tuple[str, int]]]) -> None:
    for rank, mini_batches in enumerate(ranks):
        lines = [json.dumps({"mini_batch": number, "rows": rows}) for number, rows in enumerate(mini_batches)]
        (folder / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")


def test_a_group_spread_over_the_ranks_of_one_step_is_whole(tmp_path: Path) -> None:
    write_record(tmp_path, [[("a", 0), ("b", 0)], [("c", 0)]], [[("a", 1), ("b", 1)], [("c", 1), ("pad1", 0)]])
    assert group_integrity(read_mini_batches(tmp_path)) == (2, 0, 3, 0)


def test_every_step_with_part_of_a_group_splits_it(tmp_path: Path) -> None:
    write_record(tmp_path, [[("a", 0), ("b", 0)], [("c", 0)], [("d", 0)]], [[("a", 1)], [("b", 1), ("c", 1)], [("d", 1)]])
    found = group_integrity(read_mini_batches(tmp_path))
    assert found == (3, 2, 4, 1)
    assert found.share == pytest.approx(2 / 3)


def test_a_second_pass_over_whole_groups_splits_none(tmp_path: Path) -> None:
    write_record(tmp_path, [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]] * 2)
    assert group_integrity(read_mini_batches(tmp_path)).share == 0


def test_an_empty_record_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no mini-batch"):
        read_mini_batches(tmp_path)


def test_numbers_that_are_not_finite_stay_visible_in_the_metrics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step":1,"data":{"loss":null,"score":0.5}}\n{"step":2,"data":{"loss":1.0}}\n')
    first, second = read_metrics(file)
    assert first["loss"] != first["loss"]
    assert (first["score"], second) == (0.5, {"loss": 1.0})


def test_action_waits_for_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    when_imported("made_up_module", lambda module: seen.append(module.value))
    assert seen == []
    import made_up_module

    assert seen == [1]
    when_imported("made_up_module", lambda module: seen.append(module.value + 1))
    assert seen == [1, 2]
    del sys.modules[made_up_module.__name__]
