"""Two ranks with emulated graphs act alike at the same call and train like eager."""

import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn

TESTS = Path(__file__).parents[1]
STEPS = 50
#: Parameters of the model below, before its buffers.
WEIGHTS = 32 + 16 + 9


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def rows_of(case, rank, i):
    if case == "different shapes":
        return 4 + (i + rank) % 3 if i > 20 else 4 + rank
    if case == "one odd batch":
        return 7 if rank == 1 and i == 30 else 4
    return 4


def random_batch(case, rank, i):
    numbers = torch.Generator().manual_seed(10 * (i % 5) + rank)
    x = torch.randn(rows_of(case, rank, i), 4, generator=numbers)
    return {"x": x, "y": x.sum(1, keepdim=True).sin()}


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    return nn.parallel.DistributedDataParallel(model)


def train_step(model, optimizer, case, rank):
    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        if case == "item on one rank" and rank == 0 and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("called a synchronizing CUDA operation")
        loss.backward()
        optimizer.step()
        return loss

    return train


def run_case(case, rank, graph):
    import emulation

    from farrier.torch import graph_runner
    from farrier.torch.graph_policy import Policy, StepTiming

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    train = train_step(model, optimizer, case, rank)
    run, time_step = train, graph_runner.time_step
    if graph:
        gain = 1.2 if case == "judged by one rank" else 0.0
        policy = Policy(warmups=2, min_speedup=gain, profile=False, verify_every=50, max_shapes=8)
        run = emulation.step(train, model=model, optimizer=optimizer, policy=policy)
    if case == "judged by one rank" and graph:
        busy_s = 0.009 if rank == 1 else 0.001
        graph_runner.time_step = lambda step: (step(), StepTiming(0.010, 0.010, busy_s=busy_s))
    if case == "no capture on one rank" and graph and rank == 1:

        def refuse():
            raise torch.OutOfMemoryError("CUDA out of memory")

        emulation.Arena.now.at_capture = refuse
    for i in range(STEPS):
        if case == "mismatch on one rank" and rank == 1 and graph and i == 25:
            tamper(run)
        if case == "changed on one rank" and i == 25 and rank == 1:
            optimizer.param_groups[0]["eps"] = 2e-8
        run(random_batch(case, rank, i))
    graph_runner.time_step = time_step
    report = run.report if graph else None
    summary = (
        None
        if report is None
        else (report.captures, report.replays, report.verified, report.reason and report.reason.cause)
    )
    state = torch.cat([p.detach().flatten() for p in (*model.parameters(), *model.buffers())])
    return state.tolist(), summary


def tamper(run):
    """From here on this rank's graph has other gradients than the eager step."""
    (graph,) = run._graph_runner._graphs._entries.values()
    found = graph.replayed_gradients
    graph.replayed_gradients = lambda: ((name, 1.5 * gradient) for name, gradient in found())


def rank_main(rank, port, cases, results):
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]
    import emulation

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for case in cases:
        with emulation.emulated():
            eager, *_ = run_case(case, rank, False)
            results.put((case, rank, eager, *run_case(case, rank, True)))
    torch.distributed.destroy_process_group()


CASES = (
    "alike",
    "different shapes",
    "one odd batch",
    "no capture on one rank",
    "item on one rank",
    "mismatch on one rank",
    "judged by one rank",
    "changed on one rank",
)


@pytest.fixture(scope="module")
def found():
    context = processes.get_context("spawn")
    results, port = context.SimpleQueue(), free_port()
    ranks = [context.Process(target=rank_main, args=(rank, port, CASES, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    waiting = []
    for rank, process in enumerate(ranks):
        process.join(60)
        if process.is_alive():
            waiting.append(rank)
            process.kill()
    found = {}
    while not results.empty():
        case, rank, *rest = results.get()
        found[case, rank] = rest
    assert not waiting, f"ranks {waiting} wait for ever; done: {sorted(found)}"
    return found


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_train_like_eager(found, case):
    for rank in range(2):
        eager, graphed = (torch.tensor(each) for each in found[case, rank][:2])
        torch.testing.assert_close(graphed, eager, rtol=1e-3, atol=1e-4)
    weights = [torch.tensor(found[case, rank][1])[:WEIGHTS] for rank in range(2)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


#: Per rank: captures, whether there were replays, and part of the reason.
SAID = {
    "alike": [(1, True, None)] * 2,
    "different shapes": [(0, False, "batches of different shapes")] * 2,
    "one odd batch": [(1, True, None)] * 2,
    "no capture on one rank": [(0, False, "another rank"), (0, False, "not enough memory")],
    "item on one rank": [(0, False, "waits for the GPU"), (0, False, "another rank")],
    "mismatch on one rank": [(1, True, "another rank"), (1, True, "differ after")],
    "judged by one rank": [(0, False, "another rank"), (0, False, "bound by the GPU, not")],
    "changed on one rank": [(2, True, None)] * 2,
}


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_give_a_reason(found, case):
    for rank in range(2):
        captures, replays, _, reason = found[case, rank][2]
        expected_captures, replayed, words = SAID[case][rank]
        assert captures == expected_captures, (rank, reason)
        assert (replays > 0) == replayed
        assert words in reason if words else reason is None
