"""Old path of verl's plug-in, for environments whose entry point was installed with version 0.1."""

from tokencredit.engine import warn_moved

warn_moved("tokencredit.engine.verl.plugin", "tokencredit.integrations.verl.plugin")

import tokencredit.integrations.verl.plugin  # noqa: E402, F401
