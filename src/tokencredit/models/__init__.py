"""How a model is named: a shipped base, `smollm2`, a folder, a run, or an id on the Hugging Face hub."""

from tokencredit.models.find import model_folder, pinned_name

__all__ = ["model_folder", "pinned_name"]
