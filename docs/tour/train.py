import os

import torch

os.environ["H100_ASYNC_MEM_POOL"] = "1"

cuda = torch.version.cuda
if float(cuda) < 12.8:
    raise SystemExit("CUDA 12.8 or newer, please")

model = torch.compile(torch.nn.Linear(4096, 4096).cuda(), options={"cuda_graph_capture": True})
optimizer = torch.optim.AdamW(model.parameters(), fused=True)

for batch in torch.utils.data.DataLoader(torch.randn(1024, 4096), batch_size=64):
    try:
        loss = model(batch.cuda()).square().mean()
        loss.backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        continue
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
