"""How ranks meet: at a store of the first one, on an address of its host."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

import torch.distributed as dist


def serve(request: dict[str, Any]) -> tuple[dist.Store, int]:
    """Makes the store at which ranks meet, and returns it with its port."""
    listening = socket.create_server((request["host"], 0))
    port = int(listening.getsockname()[1])
    store = dist.TCPStore(
        request["host"],
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=request["timeout"]),
        master_listen_fd=listening.detach(),
    )
    return store, port


def meet(request: dict[str, Any], store: dist.Store | None, rank: int, world: int) -> dist.Store:
    """Meets the other ranks; store is that of the rank that serves it. Returns the store, which is to stay."""
    timeout = datetime.timedelta(seconds=request["timeout"])
    if request.get("interface"):  # where the hosts of a gang reach each other
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = request["interface"]
    elif request["host"] == "127.0.0.1":  # nobody else on the network is to reach it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if store is None:
        store = dist.TCPStore(request["host"], request["port"], is_master=False, timeout=timeout)
    dist.init_process_group(request["backend"], store=store, rank=rank, world_size=world, timeout=timeout)
    return store
