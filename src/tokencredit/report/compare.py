"""Several runs side by side: what was set differently."""

from collections.abc import Sequence
from typing import NamedTuple

from tokencredit.report.methods import flat, shown
from tokencredit.report.run_reader import Run
from tokencredit.text import brief


class Difference(NamedTuple):
    path: str
    values: tuple[str, ...]


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Settings that are not the same in all runs; a setting one run does not have is an en dash there.

    Where runs chose another type at a stage, the type says it: the numbers of each type are in the methods.
    """
    settings = [flat(run.config) for run in runs]
    paths = dict.fromkeys(path for setting in settings for path in setting)
    found = []
    for path in paths:
        kind = path.rpartition(".")[0] + ".type"
        if path != kind and len({setting.get(kind) for setting in settings}) > 1:
            continue
        values = tuple(shown(setting[path]) if path in setting else "–" for setting in settings)
        if len(set(values)) > 1:
            found.append(Difference(brief(path), values))
    return found
