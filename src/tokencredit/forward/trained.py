"""What of a model is trained: all of its weights, or adapters alone."""

from torch.nn import Module, Parameter


def trained_parameters(model: Module) -> dict[str, Parameter]:
    """By their names in `named_parameters`; what is frozen has no gradient and no place in an optimizer."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
