"""Under which id a run is known to its trackers, kept in its folder so that it goes on under the same one."""

import json
import secrets
from dataclasses import asdict, dataclass

from tokencredit.config.train import Track
from tokencredit.storage.run_dir import RunFolder

FILE = "trackers.json"


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    project: str
    name: str


def identify(folder: RunFolder, track: Track) -> Identity:
    """The stored one, unless another project or name is asked for: there the run is a new one."""
    stored = _stored(folder)
    # A folder may have been renamed since.
    name = track.name or (folder.path.absolute().name if stored is None else stored.name)
    if stored is not None and (stored.project, stored.name) == (track.project, name):
        return stored
    # Not from a generator that training draws from.
    fresh = Identity(secrets.token_hex(4), track.project, name)
    folder.write_json(FILE, asdict(fresh))
    return fresh


def _stored(folder: RunFolder) -> Identity | None:
    """None for a damaged file too: the numbers are worth more under a new id than nowhere."""
    try:
        found = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
        return Identity(str(found["id"]), str(found["project"]), str(found["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
