"""What a checkpoint holds: the model's weights and statistics, and the optimiser's momentum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vivi.errors import UserError
from vivi.recipes import Optimiser
from vivi.training.distributed import World


def build_optimiser(model: nn.Module, settings: Optimiser) -> torch.optim.SGD:
    """SGD with L2 on kernels only: convolutions, linear layers and the LSTM, not biases or norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=fused)


def state_tensors(model: nn.Module, optimiser: torch.optim.SGD) -> dict[str, Tensor]:
    """Everything that a resumed run needs besides its step."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"optimiser.{name}"] = momentum
    return tensors


def load_state(model: nn.Module, optimiser: torch.optim.SGD, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what state_tensors gave."""
    model_state = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(model_state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the checkpoint does not fit the recipe's model: {reason}") from None
    for name, parameter in model.named_parameters():
        momentum = tensors.get(f"optimiser.{name}")
        if momentum is not None:
            # As the parameter lies in memory, so that the same kernels run as before.
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


def share_state(model: nn.Module, optimiser: torch.optim.SGD, world: World) -> None:
    """Gives every process what state_tensors gives in the first one."""
    parameters = dict(model.named_parameters())
    moving = [name for name, parameter in parameters.items() if optimiser.state.get(parameter)]
    for name in world.broadcast_object(moving):
        optimiser.state[parameters[name]].setdefault("momentum_buffer", torch.empty_like(parameters[name]))
    world.broadcast(list(state_tensors(model, optimiser).values()))
