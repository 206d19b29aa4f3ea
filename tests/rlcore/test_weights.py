"""The wire: bucketed broadcasts between two real processes over gloo."""

import multiprocessing
import socket

import pytest
import torch

from rlcore.weights import BroadcastGroup, TensorInfo, plan_buckets, receive_buckets, send_buckets

TENSORS = {
    "embed": torch.arange(12.0).reshape(3, 4),
    "norm": torch.tensor([0.5, -1.0], dtype=torch.bfloat16),
    "scale": torch.tensor(3.0),
    "proj": torch.arange(6.0).reshape(2, 3) * -1,
}
INFOS = [TensorInfo(n, str(t.dtype).removeprefix("torch."), list(t.shape)) for n, t in TENSORS.items()]


def test_buckets_have_one_dtype_and_respect_the_budget():
    assert [[i.name for i in b] for b in plan_buckets(INFOS, 10**6)] == [["embed"], ["norm"], ["scale", "proj"]]
    assert [[i.name for i in b] for b in plan_buckets(INFOS, 24)] == [["embed"], ["norm"], ["scale"], ["proj"]]
    assert sum(i.numel for b in plan_buckets(INFOS) for i in b) == sum(t.numel() for t in TENSORS.values())


def _receive(port, queue):
    group = BroadcastGroup("127.0.0.1", port, 1, 2, torch.device("cpu"), 30.0)
    queue.put({name: t.clone() for bucket in receive_buckets(group, INFOS) for name, t in bucket})


@pytest.mark.slow
def test_what_is_sent_arrives():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_receive, args=(port, queue), daemon=True)
    process.start()
    group = BroadcastGroup("127.0.0.1", port, 0, 2, torch.device("cpu"), 30.0)
    send_buckets(group, iter(TENSORS.items()), INFOS)
    received = queue.get(timeout=30)
    process.join(10)
    assert received.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)


class _Silent:
    device = torch.device("cpu")

    def broadcast(self, tensor):
        pass


def test_a_model_that_does_not_match_the_plan_is_named():
    with pytest.raises(ValueError, match=r"expected embed \[3, 4\], the model gave head \[3, 4\]"):
        send_buckets(_Silent(), iter([("head", TENSORS["embed"])]), INFOS)
    with pytest.raises(ValueError, match=r"the model gave embed \[4\]"):
        send_buckets(_Silent(), iter([("embed", torch.zeros(4))]), INFOS)


def test_nobody_joining_is_an_error_that_names_the_place():
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 could not meet the others at 127.0.0.1:\d+ in 0.1 s"):
        BroadcastGroup("127.0.0.1", 9, 1, 2, torch.device("cpu"), 0.1)
