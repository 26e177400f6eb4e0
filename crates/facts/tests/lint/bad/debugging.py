import torch
from lightning.pytorch import Trainer
from torch.autograd import detect_anomaly

torch.autograd.set_detect_anomaly(True)  #~ torch-debug-left-on
torch.autograd.set_detect_anomaly(mode=True, check_nan=True)  #~ torch-debug-left-on
trainer = Trainer(max_epochs=3, detect_anomaly=True)  #~ torch-debug-left-on
for batch in loader:
    with detect_anomaly():  #~ torch-debug-left-on
        model(batch).sum().backward()
