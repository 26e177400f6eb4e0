import subprocess

subprocess.run("nvidia-smi --query-gpu=name --format=csv,noheader,json", shell=True)  #~ smi-format-unknown
out = subprocess.check_output([
    "nvidia-smi",
    "--query-gpu=index,name",
    "--format=json",  #~ smi-format-unknown
])
command = "nvidia-smi --query-gpu=name --format=json"  #~ smi-format-unknown
# 400 W is the H100 max
subprocess.run(["nvidia-smi", "-pl", "400"])  #~ power-limit-as-maximum
