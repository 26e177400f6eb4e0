"""The helper around real jitted steps, on the CPU."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import farrier.jax
from farrier.agent import Job


@jax.jit
def train(weights, batch):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(weights)
    return weights - 0.1 * gradient, loss


def start():
    return jnp.zeros(4), jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)))


def of_type(messages, kind):
    return [message for message in messages if message["type"] == kind]


def test_steps_are_reported_and_results_unchanged(fake):
    step = farrier.jax.step(train, tokens=32, loss=lambda out: out[1], every_s=0.0, job=Job("4711"))
    rank = fake.accept()
    weights, batch = start()
    plain = weights
    losses = []
    for _ in range(5):
        weights, _ = step(weights, batch)
        plain, loss = train(plain, batch)
        losses.append(float(loss))
    np.testing.assert_array_equal(weights, plain)
    messages = rank.everything()
    steps = of_type(messages, "step_end")
    assert [message["step"] for message in steps] == [1, 2, 3, 4, 5]
    assert [message["loss"] for message in steps] == losses
    assert "seconds" not in steps[0], "the first step compiles"
    assert all(message["seconds"] > 0 for message in steps[1:])
    assert {message["tokens"] for message in steps} == {32}
    assert [message["name"] for message in of_type(messages, "phase")] == ["compile", "train"]


def test_not_every_step_is_waited_for(socket_path, monkeypatch):
    waits = []
    real = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda out: waits.append(1) or real(out))
    step = farrier.jax.step(train)
    weights, batch = start()
    for _ in range(1000):
        weights, _ = step(weights, batch)
    assert 1 <= len(waits) <= 20
    assert step.count == 1000


def test_step_time_is_that_of_the_work(fake):
    def slow(x):
        time.sleep(0.02)
        return x

    step = farrier.jax.step(jax.jit(lambda x: jax.pure_callback(slow, x, x)), every_s=0.1, job=Job("4711"))
    rank = fake.accept()
    x = jnp.zeros(2)
    for _ in range(20):
        x = step(x)
    seconds = [message["seconds"] for message in of_type(rank.everything(), "step_end") if "seconds" in message]
    assert seconds
    assert all(0.02 <= message < 0.5 for message in seconds), seconds


def test_out_of_memory_is_reported_and_raised(fake):
    step = farrier.jax.step(jax.jit(lambda n: jnp.zeros((1 << 46,), jnp.float32) + n), job=Job("4711"))
    rank = fake.accept()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        step(jnp.zeros(()))
    assert len(of_type(rank.everything(), "oom")) == 1


def test_another_error_is_only_raised(fake):
    step = farrier.jax.step(jax.jit(lambda a, b: a @ b), job=Job("4711"))
    rank = fake.accept()
    with pytest.raises(TypeError):
        step(jnp.zeros((2, 3)), jnp.zeros((2, 3)))
    assert not of_type(rank.everything(), "oom")


def test_a_checkpoint_is_requested_and_reported(fake):
    step = farrier.jax.step(train, first_step=100, job=Job("4711"))
    rank = fake.accept()
    rank.send(type="checkpoint_wanted", findings=["17-1"], reason="gpu.xid Xid 95")
    weights, batch = start()
    weights, _ = step(weights, batch)
    weights, _ = step(weights, batch)
    assert step.checkpoint_wanted == "gpu.xid Xid 95"
    step.checkpoint_failed(OSError("no space left"))
    assert step.checkpoint_wanted is None, "not requested again for a minute"
    step.checkpoint_done()
    messages = rank.everything()
    assert of_type(messages, "checkpoint_failed")[0]["message"] == "no space left"
    assert of_type(messages, "checkpoint_done") == [{"type": "checkpoint_done", "step": 102}]


def big(shape=(1024, 512)):
    return {"w": jnp.zeros(shape), "m": jnp.zeros(shape)}


def update(state, batch):
    return {name: value + batch.sum() for name, value in state.items()}, batch.sum()


def test_an_undonated_state_is_named(socket_path, caplog):
    step = farrier.jax.step(jax.jit(update))
    step(big(), jnp.zeros(3))
    assert step.donation.arguments == {0: 2 * 1024 * 512 * 4}
    assert "donate_argnums=(0,)" in caplog.text


def test_a_donated_state_is_not_named(socket_path, caplog):
    step = farrier.jax.step(jax.jit(update, donate_argnums=0))
    step(big(), jnp.zeros(3))
    assert step.donation.arguments == {}
    assert "held twice" not in caplog.text


def test_keyword_arguments_and_prng_keys():
    def keyed(key, *, state):
        return jax.random.split(key)[0], {name: value + 1 for name, value in state.items()}

    found = farrier.jax.donation(jax.jit(keyed), jax.random.key(0), state=big())
    assert found.arguments == {"state": 2 * 1024 * 512 * 4}


def test_an_unjitted_function_has_no_donation(socket_path):
    step = farrier.jax.step(update)
    step(big(), jnp.zeros(3))
    assert step.donation is None


def test_a_step_that_cannot_be_inspected_runs(socket_path):
    class Odd:
        def lower(self, *_, **__):
            raise RuntimeError("no lowering on this backend")

        def __call__(self, state, batch):
            return update(state, batch)

    step = farrier.jax.step(Odd())
    step(big(), jnp.zeros(3))
    assert step.donation is None
    assert step.count == 1


def test_late_settings_are_warned_about(monkeypatch, caplog):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "x")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    assert farrier.jax.configure(preallocate=False).late == ("jax",)
    assert "jax was already imported" in caplog.text
