package torch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
)

// Installation is a PyTorch that was found.
type Installation struct {
	// Executable is the Python that has it, and Python its version.
	Executable string `json:"executable"`
	Python     string `json:"python"`
	// Version is that of PyTorch; CUDA is that of the CUDA it was built for, empty where it was built for none.
	Version string `json:"version"`
	CUDA    string `json:"cuda"`
	// Devices are the names of the CUDA devices that it sees; nil where nobody asked.
	Devices []string `json:"devices"`
	// Replicas says that it is new enough for replicas of parts, and Old that it is too old for anything.
	Replicas bool `json:"replicas"`
	Old      bool `json:"old"`
}

// lookup tells of the PyTorch of a Python without loading it, which takes seconds; with an argument it loads it and
// tells the devices.
const lookup = `
import importlib.util, json, os, runpy, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit(0)
told = runpy.run_path(os.path.join(spec.submodule_search_locations[0], "version.py"))
version = str(told["__version__"])
numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2]]
found = {"executable": sys.executable, "python": sys.version.split()[0], "version": version,
         "cuda": told.get("cuda") or "", "devices": None, "replicas": numbers >= [2, 4],
         "old": sys.version_info < (3, 8) or numbers < [1, 13]}
if sys.argv[1:]:
    import torch
    found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps(found))
`

// Installed finds the PyTorch that trains where no Python is named: that of python3 in PATH or, where that has none, of
// the system's. devices asks for the CUDA devices that it sees, for which it is loaded. The error wraps [ErrNoTorch]
// where there is none.
func Installed(ctx context.Context, devices bool) (Installation, error) {
	return installed(ctx, []string{usualPython, systemPython}, devices)
}

// installed finds that of the first of some Pythons that has one.
func installed(ctx context.Context, pythons []string, devices bool) (Installation, error) {
	arguments := []string{"-B", "-c", lookup}
	if devices {
		arguments = append(arguments, "devices")
	}
	for _, python := range pythons {
		var complaints bytes.Buffer
		command := exec.CommandContext(ctx, python, arguments...) //nolint:gosec // whoever trains names it
		command.Stderr = &complaints
		output, err := command.Output()
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || err == nil && len(output) == 0 {
			continue
		}
		if err != nil && ctx.Err() == nil {
			lines := strings.Split(strings.TrimSpace(complaints.String()), "\n")
			return Installation{}, fmt.Errorf("ask %s for PyTorch: %w: %s", python, err, lines[len(lines)-1])
		}
		if err != nil {
			return Installation{}, fmt.Errorf("ask %s for PyTorch: %w", python, ctx.Err())
		}
		var found Installation
		if err := json.Unmarshal(output, &found); err != nil {
			return Installation{}, fmt.Errorf("ask %s for PyTorch: read what it says: %w", python, err)
		}
		return found, nil
	}
	return Installation{}, fmt.Errorf("%w in %s", ErrNoTorch, strings.Join(pythons, " or "))
}
