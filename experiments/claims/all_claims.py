"""Every study by name."""

from claims.declaration import Study
from claims.of_batches import BATCHING, SIGNS
from claims.of_focus import FADE
from claims.of_the_condition import FACTORIAL
from claims.of_tokens import DELTA, IBPO, NTF

STUDIES: dict[str, Study] = {study.name: study for study in (DELTA, BATCHING, FACTORIAL, SIGNS, FADE, NTF, IBPO)}
