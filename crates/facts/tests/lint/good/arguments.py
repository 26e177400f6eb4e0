import datetime

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

model = torch.compile(model, mode="max-autotune", options=None)
model = torch.compile(model, mode=None, options={"shape_padding": True})
model = torch.compile(model, mode="default", options={"shape_padding": True} if tuned else None)
model = torch.compile(model, mode=mode, options=options)
loader = DataLoader(dataset, num_workers=0, prefetch_factor=None)
loader = DataLoader(dataset, num_workers=0, prefetch_factor=2 if workers else None)
loader = DataLoader(dataset, num_workers=8, prefetch_factor=4)
loader = DataLoader(dataset, num_workers=workers, prefetch_factor=4)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=1800))
dist.init_process_group("nccl", timeout=timeout)
dist.init_process_group("nccl", timeout=None)
launcher.init_process_group("nccl", timeout=1800)
