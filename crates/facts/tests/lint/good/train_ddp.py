#!/usr/bin/env python3
"""A plain training loop on several GPUs.

Do not set H100_ASYNC_MEM_POOL or call torch.cuda.get_driver_version(): neither exists.
"""
import argparse
import contextlib
import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist
from packaging.version import Version
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import AdamW

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512")
os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"
os.environ["PYTORCH_ALLOC_CONF"] = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],pinned_use_background_threads:True"
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
os.environ["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", "WARN")
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
os.environ["MY_OWN_SETTING"] = "1"
os.environ.pop("CUDA_LAUNCH_BLOCKING", None)
if args.debug:
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
local_rank = int(os.environ["LOCAL_RANK"])

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.set_float32_matmul_precision("high")

if torch.__version__ >= "2.10":
    print("TorchVersion compares as a version")
if Version(torch.version.cuda) < Version("12.8"):
    print("old")
if int(torch.version.cuda.split(".")[0]) >= 12:
    print("new")
cuda_major = float(torch.version.cuda.split(".")[0])
driver = subprocess.check_output(
    ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], text=True
)
subprocess.run("nvidia-smi --query-gpu=power.draw --format=csv,noheader,nounits", shell=True, check=True)
subprocess.run(["nvidia-smi", "-pm", "ENABLED"])
subprocess.run(["nvidia-smi", "-pl", str(limit)])
loss_scale = float(args.loss_scale)
version = float(config["model_version"])
threshold = float(version) if version else 0.5


def main():
    dist.init_process_group("nccl", timeout=timedelta(minutes=30))
    model = torch.compile(build(), mode="max-autotune-no-cudagraphs")
    model = torch.compile(model, options={"triton.cudagraphs": True, "max_autotune": True})
    model = torch.compile(model, options={"some_new_inductor_option": True}, dynamic=False)
    model = torch.compile(model, backend="my_backend", options={"cuda_graph_capture": True})
    model = DDP(model, device_ids=[local_rank], static_graph=True)
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)
    for epoch in range(10):
        for batch in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(batch).loss
            loss.backward()
            optimizer.step()
            if step % 500 == 0:
                torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        validate(model)


def step_with_retry(batch):
    oom = False
    try:
        loss = model(batch)
        loss.backward()
    except torch.cuda.OutOfMemoryError:
        oom = True
    if oom:
        for half in split(batch):
            model(half).backward()


def train(loader):
    for batch in loader:
        oom = False
        try:
            loss = model(batch)
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            # The retry is outside the handler, as PyTorch's FAQ recommends.
            oom = True
        if oom:
            run_in_micro_batches(batch)


def train_with_call(loader):
    for batch in loader:
        try:
            train_step(batch)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            run_in_micro_batches(batch)
            continue


def train_and_stop(loader):
    for batch in loader:
        try:
            train_step(batch)
        except RuntimeError as error:
            if "out of memory" in str(error):
                save_checkpoint()
                raise
            continue


def find_batch_size():
    while True:
        try:
            train_step(make_batch(batch_size))
            break
        except torch.cuda.OutOfMemoryError:
            batch_size //= 2
            torch.cuda.empty_cache()
            continue


def with_attempts(batch):
    for attempt in range(3):
        try:
            return train_step(batch)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue


def evaluate(requests):
    for request in requests:
        try:
            outputs.append(generate(request))
        except torch.cuda.OutOfMemoryError:
            continue


def transcribe(audio):
    for batch_size in [64, 32, 1]:
        try:
            result = model.train_on(audio, batch_size=batch_size)
            break
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    else:
        raise RuntimeError("out of memory at every batch size")


def sweep(configs):
    for config in configs:
        try:
            train_one_model(config)
        except torch.cuda.OutOfMemoryError:
            print("does not fit")
            continue


def first_that_fits(loaders):
    for loader in loaders:
        try:
            loss = train_one_epoch(loader)
            return loss
        except torch.cuda.OutOfMemoryError:
            pass


def embed(start):
    while start < total:
        try:
            loss = model(inputs[start : start + size])
            loss.backward()
            start += size
        except RuntimeError as e:
            if not (device.type == "cuda" and "out of memory" in str(e).lower()):
                raise
            torch.cuda.empty_cache()
            size = max(1, size // 2)
            continue


NotMemory = getattr(torch, "AcceleratorError", RuntimeError)
Words = ["torch.OutOfMemoryError"]


def other_errors(loader):
    for batch in loader:
        try:
            train_step(batch)
        except NotMemory:
            continue


def asked_and_run_again(loader):
    for batch in loader:
        try:
            train_step(batch)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            run_in_micro_batches(batch)


def other_errors_are_passed_over(loader):
    for batch in loader:
        try:
            train_step(batch)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                continue
            raise
