import subprocess
import tensorflow as tf
import torch

# Seen in TransformerEngine's tests: `float(torch.version.cuda) >= 12.8`.
recipe_available = capability >= (9, 0) and float(torch.version.cuda) >= 12.8  #~ version-as-float
pt_cuda_ver = float(torch.version.cuda) if torch.version.cuda else 0.0  #~ version-as-float
if float(cuda) < 12.8:  #~ version-as-float
    pass
if 12.8 > float(cuda):  #~ version-as-float
    pass
if float(driver_version.split('.')[0] + '.' + driver_version.split('.')[1]) < 570.26:  #~ version-as-float
    pass
if float(".".join(torch.__version__.split(".")[:2])) >= 2.1:  #~ version-as-float
    pass
if float(torch.__version__[:3]) >= 1.8:  #~ version-as-float
    pass
if float(cuda_version) < float(torch.version.cuda):  #~ version-as-float
    pass
if torch.version.cuda < "12.8":  #~ version-as-text
    pass
if tf.__version__ >= "2.10":  #~ version-as-text
    pass
if torch.__version__.split("+")[0] >= "2.10":  #~ version-as-text
    pass
