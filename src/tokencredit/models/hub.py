"""A model of the Hugging Face hub: from its local cache if it is there, else fetched. Weights as safetensors only."""

import re
from pathlib import Path

from tokencredit.errors import ConfigError

WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "README.md")
NEEDED = ("config.json", "tokenizer_config.json", "*.safetensors")
"""Somebody may have fetched single files: without these a snapshot is no model yet."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
SECONDS = 10.0
"""Before the hub counts as out of reach."""


def is_hub_id(name: str) -> bool:
    """owner/name, with @revision behind it or not."""
    return len(name) <= 200 and _ID.fullmatch(name) is not None


def hub_folder(name: str) -> Path:
    """The local cache is asked first, so that a run needs no network once its model was fetched."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    asked = {"repo_id": repository, "revision": revision or None, "allow_patterns": list(WANTED)}
    try:
        folder = Path(snapshot_download(**asked, local_files_only=True))
        if all(any(folder.glob(part)) for part in NEEDED):
            return folder
    except Exception:
        pass  # It is not there, or not whole.
    try:
        return Path(snapshot_download(**asked, etag_timeout=SECONDS))
    except Exception as problem:  # the library, its transport and the hub each have errors of their own
        said = str(problem).strip().split("\n")[0][:200] or type(problem).__name__
        raise ConfigError(
            f"model {name!r} is neither a folder nor in the hub's local cache, and it cannot be fetched ({said}); "
            "give a folder written by save_pretrained, or fetch it where the hub can be reached"
        ) from None


def pinned_id(name: str, folder: Path) -> str:
    """With the commit that is in the cache: a branch may move on."""
    return f"{name.partition('@')[0]}@{folder.name}"
