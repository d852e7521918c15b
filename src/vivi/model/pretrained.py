"""timm's own weights: fetched from their hub, or found in its cache on this machine."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import timm
from huggingface_hub import constants
from torch import nn

from vivi.runtime.errors import UserError, first_line

_PATIENCE = 3.0  # seconds


def create_pretrained(name: str, **arguments: Any) -> nn.Module:
    """A timm model with its own weights. Without a network, which the hub's library would try to reach for a minute,
    they come from the cache, or it is known at once that they are not there."""
    there = hub_answers()
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not there
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **arguments)
        return model
    except Exception as error:
        why = first_line(error) if there and not before else "there is no network, and no copy in the hub's cache"
        remedy = "vivi evaluate takes a file of weights instead, --weights FILE"
        raise UserError(f"timm's weights of {name} cannot be loaded ({why}); {remedy}") from None
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_answers() -> bool:
    """Whether the hub of timm's weights, or the proxy on the way to it, answers soon."""
    proxies = urllib.request.getproxies()
    url = urlsplit(proxies.get("https") or proxies.get("all") or constants.ENDPOINT)
    address = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    answers = []

    def connect() -> None:
        with suppress(OSError), socket.create_connection(address, _PATIENCE):
            answers.append(True)

    thread = threading.Thread(target=connect, daemon=True)  # a name may take long to be looked up
    thread.start()
    thread.join(_PATIENCE)
    return bool(answers)
