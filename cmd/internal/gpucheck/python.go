package gpucheck

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	executor "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// look prints as JSON what a Python has, as found has it.
//
//go:embed models/look.py
var look string

// found is what a Python has.
type found struct {
	Executable   string         `json:"executable"`
	Python       string         `json:"python"`
	Torch        string         `json:"torch"`
	CUDA         string         `json:"cuda"`
	Transformers string         `json:"transformers"`
	Devices      int            `json:"devices"`
	Name         string         `json:"name"`
	UUID         string         `json:"uuid"`
	Memory       quantity.Bytes `json:"memory"`
	BFloat16     bool           `json:"bfloat16"`
	Why          string         `json:"why"`
}

// pythons are looked for in this order where nobody names one.
func pythons() []string {
	return []string{
		"python3", "python", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3", "/opt/venv/bin/python3",
		"/venv/bin/python3",
	}
}

// lookLimit is how long one Python may take to tell what it has, as importing torch from a cold disk takes half a
// minute; looksLimit is for all of them.
const lookLimit, looksLimit = 45 * time.Second, 60 * time.Second

// findPython takes the first Python whose torch computes on the GPU, or else the first that has torch, and what it says
// of the device.
func (c *check) findPython(ctx context.Context) {
	m := &c.report.Machine
	ctx, cancel := context.WithTimeoutCause(ctx, looksLimit, fmt.Errorf("no Python was found within %s", looksLimit))
	defer cancel()
	candidates := pythons()
	if c.Python != "" {
		candidates = []string{c.Python}
	}
	var best found
	var wrong []string
	seen := map[string]bool{}
	for _, name := range candidates {
		path, err := exec.LookPath(name)
		if err != nil {
			if c.Python != "" {
				wrong = append(wrong, err.Error())
			}
			continue
		}
		if path, err = filepath.Abs(path); err != nil || seen[path] {
			continue
		}
		seen[path] = true
		one, err := c.look(ctx, path)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		if best.Torch == "" || best.Devices == 0 && one.Devices > 0 {
			best = one
		}
		if best.Devices > 0 || best.Torch != "" && c.Device == executor.CPU {
			break
		}
	}
	m.Executable, m.Python, m.Torch, m.TorchCUDA = best.Executable, best.Python, best.Torch, best.CUDA
	m.Transformers, m.Unfit = best.Transformers, wrong
	switch {
	case m.Torch == "":
		m.Why = "no Python with torch: " + cmp.Or(strings.Join(wrong, "; "), "there is no Python")
		return
	case c.Device == executor.CPU:
		m.Device, m.Name = executor.CPU, ""
	case best.Devices == 0:
		m.Why = cmp.Or(best.Why, "it says nothing more")
	default:
		m.Device, m.Name, m.Memory, m.BFloat16 = executor.CUDA, best.Name, best.Memory, best.BFloat16
		m.Seen, m.UUID = best.Devices, best.UUID
	}
	// Wherever it is and whatever it is called; a link would hide from it the environment that it belongs to.
	script := "#!/bin/sh\nexec '" + strings.ReplaceAll(m.Executable, "'", `'\''`) + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(c.work, "bin", "python3"), []byte(script), 0o755); err != nil {
		m.Device, m.Why = "", err.Error()
	}
}

// look asks a Python what it has.
func (c *check) look(ctx context.Context, path string) (found, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookLimit, fmt.Errorf("%w within %s", errSlow, lookLimit))
	defer cancel()
	cmd := exec.Command(path, "-c", look) //nolint:noctx // Run ends it with its context
	cmd.Env, cmd.Dir = c.environment(), c.work
	out, log := spawn.NewLastBytes(answerEnd), spawn.NewLastBytes(answerEnd)
	cmd.Stdout, cmd.Stderr = out, log
	if err := errors.Join(c.spawner.Run(ctx, cmd), c.endSteps()); err != nil {
		return found{}, fmt.Errorf("%s: %w: %s", path, err, lastLine(log.Text()))
	}
	var one found
	if err := json.Unmarshal([]byte(lastLine(out.Text())), &one); err != nil {
		return found{}, fmt.Errorf("%s: read what it has: %w", path, err)
	}
	one.Executable = path
	if one.Torch == "" {
		return one, fmt.Errorf("%s has no torch: %s", path, one.Why)
	}
	return one, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// machine judges what was found: a GPU that torch does not see is wrong, no GPU is not.
func (c *check) machine(r *Result) {
	m := c.report.Machine
	r.Complete, r.Notes = true, m.Unfit
	switch {
	case m.Torch == "":
		r.Outcome, r.Notes = Skipped, append(r.Notes, "no Python with torch; install it, or name one: --python PATH")
		if len(m.GPUs) > 0 {
			r.Outcome, r.Why = Failed, []string{"there are GPUs, and " + m.Why + "; name a Python that has torch: --python PATH"}
		}
	case m.Device == "" && c.Device != executor.CUDA && len(m.GPUs) > 0 && c.Visible != nil &&
		len(device.Visible(c.reading.Devices, *c.Visible)) == 0:
		r.Outcome, r.Notes = Skipped, append(r.Notes, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q hides every GPU", *c.Visible))
	case m.Device == "" && (len(m.GPUs) > 0 || c.Device == executor.CUDA):
		r.Outcome, r.Why = Failed, []string{"torch finds no GPU: " + m.Why}
	case m.Device == "":
		r.Outcome, r.Notes = Skipped, append(r.Notes, "no GPU: "+m.Why+"; --device cpu runs the steps on CPUs")
	case m.Device == executor.CUDA && m.Seen != 1 && m.Assigned != "":
		r.Outcome, r.Why = Failed, []string{fmt.Sprintf("torch sees %d devices where one was assigned", m.Seen)}
	case m.UUID != "" && strings.HasPrefix(m.Assigned, "GPU-") && !strings.HasSuffix(m.Assigned, m.UUID):
		r.Outcome, r.Why = Failed, []string{fmt.Sprintf("torch sees device %s, and %s was assigned", m.UUID, m.Assigned)}
	default:
		r.settle(nil)
	}
}
