"""The callback in a real `fit`, on the backend that KERAS_BACKEND names."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
from fake_agent import Agent

import farrier.keras
from farrier.agent import Job
from farrier.cadence import Cadence

BACKEND = keras.backend.backend()

#: Out-of-memory messages of the backends on a GPU, which these tests do not have.
OOM = {
    "tensorflow": "OOM when allocating tensor with shape[1024,1024] and type float on /device:GPU:0 by allocator GPU_0_bfc",
    "jax": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4194304 bytes.",
    "torch": "CUDA out of memory. Tried to allocate 4.00 MiB. GPU 0 has a total capacity of 139.80 GiB",
}


def oom_error():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.errors.ResourceExhaustedError(None, None, OOM[BACKEND])
    if BACKEND == "jax":
        import jax

        return jax.errors.JaxRuntimeError(OOM[BACKEND])
    import torch

    return torch.OutOfMemoryError(OOM[BACKEND])


def model_of(**words):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.AdamW(1e-2), loss="mse", **words)
    return model


def data(batches=6):
    x = np.random.default_rng(0).normal(size=(8 * batches, 4)).astype("float32")
    return {"x": x, "y": x.sum(axis=1, keepdims=True), "batch_size": 8, "shuffle": False, "verbose": 0}


@pytest.fixture
def every_step(monkeypatch):
    """Makes the callback sync at every step, as it does if steps are slow."""
    monkeypatch.setattr(Cadence, "due", lambda self, step: True)


def of_type(messages, kind):
    return [message for message in messages if message["type"] == kind]


def wants(rank, key="17-1", reason="gpu.xid Xid 95"):
    rank.send(type="checkpoint_wanted", findings=[key], reason=reason)


def test_steps_phases_and_losses_are_reported(fake, every_step):
    callback = farrier.keras.Callback(tokens=512, job=Job("4711"))
    rank = fake.accept()
    history = model_of().fit(**data(), epochs=2, validation_split=0.25, callbacks=[callback])
    messages = rank.everything()
    steps = of_type(messages, "step_end")
    per_epoch = 5  # Batches of 8 from 36 of the 48 rows; the others are for validation.
    assert [message["step"] for message in steps] == list(range(1, 2 * per_epoch + 1))
    assert {message["tokens"] for message in steps} == {512}
    assert "seconds" not in steps[0], "the first step compiles"
    assert all(0 < message["seconds"] < 60 for message in steps[1:])
    assert steps[per_epoch - 1]["loss"] == pytest.approx(history.history["loss"][0], rel=1e-5)
    assert steps[-1]["loss"] == pytest.approx(history.history["loss"][1], rel=1e-5)
    phases = [message["name"] for message in of_type(messages, "phase")]
    assert phases == ["compile", "train", "evaluate", "train", "evaluate", "train", "done"]
    assert callback.step == 2 * per_epoch


def test_fast_steps_are_not_waited_for(fake):
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    model_of().fit(**data(100), callbacks=[callback])
    steps = [message["step"] for message in of_type(rank.everything(), "step_end")]
    assert len(steps) < 20
    assert steps[0] == 1
    assert steps[-1] == 100, "the end of an epoch is reported"


def test_training_is_the_same_without_an_agent(socket_path):
    plain = model_of().fit(**data(), epochs=2).history
    callback = model_of().fit(**data(), epochs=2, callbacks=[farrier.keras.Callback()]).history
    assert callback == plain


def test_training_is_the_same_with_a_hung_agent(fake, every_step):
    callback = farrier.keras.Callback(job=Job("4711"))
    fake.accept()
    plain = model_of().fit(**data(), epochs=2).history
    assert model_of().fit(**data(), epochs=2, callbacks=[callback]).history == plain


def test_several_steps_in_one_execution(fake, every_step):
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    # On torch, Keras runs one step per execution.
    executed, steps = (1, list(range(1, 11))) if BACKEND == "torch" else (4, [4, 8, 10])
    model_of(steps_per_execution=executed).fit(**data(10), callbacks=[callback])
    assert [message["step"] for message in of_type(rank.everything(), "step_end")] == steps


def test_a_resumed_run_continues_the_step_count(fake, every_step):
    model = model_of()
    model.fit(**data(3))
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    model.fit(**data(3), callbacks=[callback])
    assert [message["step"] for message in of_type(rank.everything(), "step_end")] == [4, 5, 6]
    again = farrier.keras.Callback(job=callback.job, first_step=100)
    model.fit(**data(2), callbacks=[again])
    assert [message["step"] for message in of_type(rank.everything(), "step_end")] == [101, 102]


def test_a_requested_checkpoint_is_saved_and_reported(fake, every_step, tmp_path):
    callback = farrier.keras.Callback(job=Job("4711"), save=str(tmp_path / "ckpt" / "{step}.keras"))
    rank = fake.accept()
    wants(rank)
    model = model_of()
    model.fit(**data(), callbacks=[callback])
    messages = rank.everything()
    done = of_type(messages, "checkpoint_done")
    assert len(done) == 1
    step = done[0]["step"]
    assert step == 1, "nothing to save before the first step"
    assert [message.name for message in (tmp_path / "ckpt").iterdir()] == [f"{step}.keras"]
    assert callback.checkpoint_wanted is None
    assert "checkpoint" in [message["name"] for message in of_type(messages, "phase")]
    # The file has the state after that step: a second run of as many steps gives the same weights.
    loaded = keras.saving.load_model(tmp_path / "ckpt" / f"{step}.keras")
    assert int(loaded.optimizer.iterations) == step
    same = model_of()
    same.fit(**{**data(), "x": data()["x"][: 8 * step], "y": data()["y"][: 8 * step]})
    for one, other in zip(loaded.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_saving_does_not_change_training(fake, tmp_path):
    plain = model_of()
    plain.fit(**data())
    saved = []

    def save(model, step):
        saved.append((step, model.get_weights()))

    callback = farrier.keras.Callback(job=Job("4711"), save=save)
    rank = fake.accept()

    class Later(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                wants(rank)

    model = model_of()
    model.fit(**data(), callbacks=[Later(), callback])
    assert [step for step, _ in saved] == [3]
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failed_checkpoint_is_reported_and_training_continues(fake, every_step):
    def save(model, step):
        raise OSError("no space left on /ckpt")

    callback = farrier.keras.Callback(job=Job("4711"), save=save)
    rank = fake.accept()
    wants(rank)
    model_of().fit(**data(), callbacks=[callback])
    messages = rank.everything()
    assert [message["message"] for message in of_type(messages, "checkpoint_failed")] == ["OSError: no space left on /ckpt"]
    assert not of_type(messages, "checkpoint_done")
    assert of_type(messages, "step_end")[-1]["step"] == 6


def test_training_stops_after_a_requested_checkpoint(fake, every_step, tmp_path):
    callback = farrier.keras.Callback(job=Job("4711"), save=str(tmp_path / "{step}.weights.h5"), stop_after_checkpoint=True)
    rank = fake.accept()
    wants(rank)
    model_of().fit(**data(50), epochs=3, callbacks=[callback])
    assert of_type(rank.everything(), "step_end")[-1]["step"] < 5
    assert len(list(tmp_path.glob("*.weights.h5"))) == 1


def test_agree_is_called_at_the_same_steps(fake, every_step):
    asked, saved = [], []

    def agree(mine):
        asked.append((callback.step, mine))
        return callback.step >= 8  # Another rank has received the request by then.

    callback = farrier.keras.Callback(
        job=Job("4711"), save=lambda model, step: saved.append(step), agree=agree, agree_every=4
    )
    fake.accept()
    model_of().fit(**data(10), callbacks=[callback])
    assert asked == [(4, False), (8, False)]
    assert saved == [8]


def test_periodic_saves_span_epochs_and_the_end(fake):
    saved = []
    callback = farrier.keras.Callback(job=Job("4711"), save=lambda model, step: saved.append(step), save_every=5)
    rank = fake.accept()
    model_of().fit(**data(5), epochs=2, callbacks=[callback])
    assert saved == [5, 10], "saves at the last step of an epoch too, and only once at the end"
    model_of().fit(**data(7), callbacks=[callback])
    assert saved == [5, 10, 5, 7]
    assert callback.last_saved_step == callback.step == 7
    assert [message["step"] for message in of_type(rank.everything(), "checkpoint_done")] == saved


def test_request_stop_saves_the_last_step_and_allows_reuse(fake):
    saved = []
    callback = farrier.keras.Callback(job=Job("4711"), save=lambda model, step: saved.append(step), save_every=100)
    fake.accept()

    class Stops(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                callback.request_stop("asked to stop")

    model = model_of()
    model.fit(**data(50), epochs=3, callbacks=[Stops(), callback])
    assert saved == [4]
    assert int(model.optimizer.iterations) == 4
    model.fit(**data(6), callbacks=[callback])
    assert saved == [4, 10]


def test_a_failed_final_checkpoint_is_not_counted_as_saved(fake):
    def save(model, step):
        if step == 6:
            raise OSError("no space left on /ckpt")

    callback = farrier.keras.Callback(job=Job("4711"), save=save, save_every=4)
    rank = fake.accept()
    model_of().fit(**data(), callbacks=[callback])
    assert (callback.last_saved_step, callback.step) == (4, 6)
    assert len(of_type(rank.everything(), "checkpoint_failed")) == 1


def test_agree_is_called_at_periodic_saves_too(fake):
    asked, saved = [], []

    def agree(mine):
        asked.append(callback.step)
        return callback.step >= 6

    callback = farrier.keras.Callback(
        job=Job("4711"), save=lambda model, step: saved.append(step), save_every=3, stop_after_checkpoint=True, agree=agree
    )
    fake.accept()
    model_of().fit(**data(10), callbacks=[callback])
    assert asked == [3, 6]
    assert saved == [3, 6, 7], "one more step runs after the agreed one and is saved"


@pytest.mark.parametrize("words", [{"save_every": 5}, {"save_every": 0, "save": "{step}.keras"}])
def test_invalid_save_settings_are_rejected(words):
    with pytest.raises(ValueError, match="save_every"):
        farrier.keras.Callback(**words)


def test_no_gpu_name_without_a_gpu():
    assert farrier.keras.gpu() is None


@pytest.mark.parametrize("path", ["x/{step}.pt", "x/{epoch}.keras", "x/{step.keras", "x/{}.keras"])
def test_an_invalid_path_is_rejected_before_the_first_step(socket_path, path):
    callback = farrier.keras.Callback(save=path)
    with pytest.raises(ValueError, match="x/"):
        model_of().fit(**data(), callbacks=[callback])


def test_only_rank_0_writes_and_reports(fake, tmp_path):
    from farrier.keras.checkpoint_writer import path_writer

    job = Job("4711", rank=1)
    rank = fake.accept()
    wants(rank)
    job.poll()
    assert path_writer(str(tmp_path / "{step}.keras"), job)(None, 5, job)
    assert job.checkpoint_wanted is None
    assert not of_type(rank.everything(), "checkpoint_done")
    assert not list(tmp_path.glob("*.keras"))


def test_a_failed_write_leaves_no_file(tmp_path):
    from farrier.keras.checkpoint_writer import save_atomically

    class Torn:
        def save(self, path):
            with open(path, "w") as file:
                file.write("half")
            raise OSError("the disk is gone")

    (tmp_path / "5.keras").write_text("whole")
    with pytest.raises(OSError, match="the disk is gone"):
        save_atomically(Torn(), str(tmp_path / "5.keras"))
    assert [(message.name, message.read_text()) for message in tmp_path.iterdir()] == [("5.keras", "whole")]


def test_out_of_memory_in_a_step_is_reported_and_raised(fake):
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    model = model_of()
    model.make_train_function()
    steps = []

    def fails(*words):
        steps.append(1)
        raise oom_error()

    model.train_function = fails
    with pytest.raises(Exception, match=r"memory|OOM"), farrier.keras.reporting(callback.job):
        model.fit(**data(), callbacks=[callback])
    assert len(steps) == 1, "nothing is retried silently"
    assert of_type(rank.everything(), "oom") == [{"type": "oom", "bytes_wanted": 4194304}], "reported once"


def test_another_error_is_not_reported(fake):
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    model = model_of()
    model.make_train_function()

    def fails(*words):
        raise RuntimeError("a bug")

    model.train_function = fails
    with pytest.raises(RuntimeError, match="a bug"):
        model.fit(**data(), callbacks=[callback])
    assert not of_type(rank.everything(), "oom")


def test_the_train_function_is_wrapped_once_and_restored(socket_path):
    model = model_of()
    model.fit(**data(2))
    before = model.train_function
    model.fit(**data(2), callbacks=[farrier.keras.Callback(), farrier.keras.Callback()])
    assert model.train_function is before


def test_keras_keeps_handling_logs_asynchronously():
    """Keras handles logs asynchronously only if no callback has `on_train_batch_end`."""
    callbacks = keras.callbacks.CallbackList([farrier.keras.Callback()], model=model_of())
    assert callbacks._async_train == keras.callbacks.CallbackList([], model=model_of())._async_train


def test_a_separate_evaluation(fake):
    callback = farrier.keras.Callback(job=Job("4711"))
    rank = fake.accept()
    words = data()
    words.pop("shuffle")
    model_of().evaluate(**words, callbacks=[callback])
    assert [message["name"] for message in of_type(rank.everything(), "phase")] == ["evaluate"]


def test_an_agent_that_dies_during_training(fake, every_step, socket_path):
    callback = farrier.keras.Callback(job=Job("4711"))
    fake.accept()

    class Falls(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                fake.die()

    plain = model_of().fit(**data()).history
    assert model_of().fit(**data(), callbacks=[Falls(), callback]).history == plain
    assert callback.job.dropped > 0
    assert isinstance(fake, Agent)


def test_mixed_bfloat16_is_used():
    try:
        farrier.keras.configure(BACKEND, mixed_bfloat16=True)
        layer = keras.layers.Dense(2)
        assert (layer.compute_dtype, layer.variable_dtype) == ("bfloat16", "float32")
    finally:
        keras.config.set_dtype_policy("float32")
