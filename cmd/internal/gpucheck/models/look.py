"""Prints as JSON what this Python has to compute with."""

import importlib.metadata
import json
import sys

found = {"python": sys.version.split()[0], "torch": "", "cuda": "", "transformers": "", "devices": 0, "why": ""}
try:
    import torch

    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda or ""
    try:
        torch.zeros(1, device="cuda").item()  # is_available() is true of devices that no kernel runs on
        found["devices"] = torch.cuda.device_count()
        properties = torch.cuda.get_device_properties(0)
        found["name"], found["memory"] = properties.name, torch.cuda.mem_get_info(0)[0]
        found["uuid"] = str(getattr(properties, "uuid", ""))
        found["bfloat16"] = properties.major >= 8
    except Exception as error:
        found["why"] = f"torch {torch.__version__}: {error}".split("\n")[0]
    try:
        found["transformers"] = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        pass
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}".split("\n")[0]
print(json.dumps(found))
