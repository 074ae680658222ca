package gpucheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// readGPUs starts the watch of the GPUs and takes over what it saw first.
func (c *check) readGPUs(ctx context.Context) {
	m := &c.report.Machine
	w, reading, err := startWatch(ctx, c.spawner, filepath.Join(c.Bundle, Inventory))
	if err != nil {
		m.NoGPUs = err.Error()
		return
	}
	c.watch, c.reading = w, reading
	m.Driver, m.CUDA = reading.Driver, reading.CUDA
	for _, s := range reading.Devices {
		m.GPUs = append(m.GPUs, s.Device)
	}
	if one, chosen := assign(reading.Devices, c.Visible); chosen {
		m.Assigned = one.UUID
	}
}

// assign takes the device that works and has most memory free, among those that a value of CUDA_VISIBLE_DEVICES leaves:
// an empty one none, nil all.
func assign(devices []device.State, visible *string) (device.State, bool) {
	if visible != nil {
		devices = device.Visible(devices, *visible)
	}
	devices = slices.DeleteFunc(slices.Clone(devices), func(d device.State) bool { return d.Wrong != "" })
	if len(devices) == 0 {
		return device.State{}, false
	}
	return slices.MaxFunc(devices, func(a, b device.State) int {
		// the last device rather than the first, which is what a program takes that was told nothing
		return cmp.Or(cmp.Compare(a.Free>>30, b.Free>>30), device.Order(a, b))
	}), true
}

// inventory compares what workers/device read with what nvidia-smi prints.
func (c *check) inventory(ctx context.Context, r *Result) {
	m := c.report.Machine
	r.Complete = true
	rows, errRows := c.smi(ctx, smiQuery("index,uuid,name,memory.total,memory.reserved,mig.mode.current")...)
	if errRows != nil && !errors.Is(errRows, errSlow) { // older ones know neither what is reserved nor instances
		rows, errRows = c.smi(ctx, smiQuery("index,uuid,name,memory.total")...)
	}
	list, err := "", errRows
	if !errors.Is(err, errSlow) { // it would be so again
		var errList error
		list, errList = c.smi(ctx, "-L")
		err = errors.Join(err, errList)
	}
	missing := errors.Is(err, exec.ErrNotFound)
	switch {
	case m.NoGPUs != "" && missing:
		r.Outcome, r.Notes = Skipped, []string{"no GPU: " + m.NoGPUs + "; there is no nvidia-smi either"}
	case m.NoGPUs != "" && err != nil:
		r.Outcome, r.Notes = Skipped, []string{"no GPU: " + m.NoGPUs, "nvidia-smi says: " + err.Error()}
	case m.NoGPUs != "":
		r.Why = []string{"nvidia-smi names GPUs, and workers/device: " + m.NoGPUs}
	case missing:
		r.Outcome, r.Notes = Skipped, []string{"there is no nvidia-smi to compare with"}
	case err != nil:
		r.Why = []string{err.Error()}
	default:
		r.Why = inventoryDiffers(c.reading.Devices, rows, list)
	}
	for _, s := range c.reading.Devices {
		r.Notes = append(r.Notes, describe(s))
	}
	r.settle(nil)
}

func describe(s device.State) string {
	if s.Wrong != "" {
		return s.Label() + ": " + s.Wrong
	}
	text := fmt.Sprintf("%s: %s (%s), %s, capability %s, %s used by %d processes, %s free", s.Label(), s.Name, s.Class,
		s.UUID, cmp.Or(s.Capability, "unknown"), s.Used, len(s.Processes), s.Free)
	if s.Busy >= 0 {
		text += fmt.Sprintf(", %.0f %% busy", 100*s.Busy)
	}
	if s.Watts >= 0 {
		text += fmt.Sprintf(", %.0f W", s.Watts)
	}
	if s.Uncorrected >= 0 {
		text += fmt.Sprintf(", %d uncorrected memory errors", s.Uncorrected)
	}
	return text
}

func smiQuery(fields string) []string {
	return []string{"--query-gpu=" + fields, "--format=csv,noheader,nounits"}
}

// smiLimit is how long nvidia-smi may take: a driver that nothing keeps loaded takes up to three seconds for each GPU,
// and one that is in trouble never ends. answerEnd is how much of an answer is read, in bytes.
const (
	smiLimit  = time.Minute
	answerEnd = 1 << 20
)

// errSlow says that a program did not answer.
var errSlow = errors.New("no answer")

func (c *check) smi(ctx context.Context, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, smiLimit, fmt.Errorf("%w within %s", errSlow, smiLimit))
	defer cancel()
	cmd := exec.Command("nvidia-smi", arguments...) //nolint:noctx // Run ends it with its context
	out := spawn.NewLastBytes(answerEnd)
	cmd.Stdout, cmd.Stderr = out, out
	if err := c.spawner.Run(ctx, cmd); err != nil {
		return "", fmt.Errorf("nvidia-smi %s: %w: %s", strings.Join(arguments, " "), err, lastLine(out.Text()))
	}
	return out.Text(), nil
}

// How nvidia-smi -L names GPUs and the instances below them.
var (
	listedGPU      = regexp.MustCompile(`^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)`)
	listedInstance = regexp.MustCompile(`^\s+MIG .*\(UUID: (MIG-[^)]+)\)`)
)

// inventoryDiffers says where what was read is not what nvidia-smi printed: rows are its answer to smiQuery, list that
// to -L.
func inventoryDiffers(devices []device.State, rows, list string) []string {
	var differences []string
	differs := func(format string, arguments ...any) {
		differences = append(differences, fmt.Sprintf(format, arguments...))
	}
	instances := map[int][]string{} // by the index of the GPU
	at := -1
	for line := range strings.Lines(list) {
		if found := listedGPU.FindStringSubmatch(line); found != nil {
			at, _ = strconv.Atoi(found[1]) // the expression has found digits
		} else if found := listedInstance.FindStringSubmatch(line); found != nil {
			instances[at] = append(instances[at], found[1])
		}
	}
	known := 0
	for line := range strings.Lines(rows) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		fields := strings.Split(strings.TrimSpace(line), ", ")
		index, err := strconv.Atoi(fields[0])
		if len(fields) < 4 || err != nil {
			differs("nvidia-smi prints %q, which is no row of a GPU", strings.TrimSpace(line))
			continue
		}
		known++
		var here []device.State
		for _, d := range devices {
			if d.Index == index {
				here = append(here, d)
			}
		}
		differences = append(differences, gpuDiffers(here, index, fields[1:], instances[index])...)
	}
	gpus := map[int]bool{}
	for _, d := range devices {
		gpus[d.Index] = true
	}
	if len(gpus) != known {
		differs("workers/device reads %d GPUs, and nvidia-smi names %d", len(gpus), known)
	}
	return differences
}

// gpuDiffers compares one GPU, or its instances, with the row of nvidia-smi: UUID, name, memory, what the driver
// reserves, and whether it is cut into instances.
func gpuDiffers(here []device.State, index int, row, instances []string) []string {
	var differences []string
	differs := func(what string, read, want any) {
		differences = append(differences, fmt.Sprintf("GPU %d: its %s is %v, and %v for nvidia-smi", index, what, read, want))
	}
	if len(here) == 0 {
		return []string{fmt.Sprintf("GPU %d of nvidia-smi is not read", index)}
	}
	if !here[0].Whole() || len(instances) > 0 {
		var uuids []string
		for _, d := range here {
			uuids = append(uuids, d.UUID)
		}
		if !slices.Equal(uuids, instances) {
			differs("instances", uuids, instances)
		}
		if len(row) > 4 && row[4] != "Enabled" {
			differs("mode of instances", "on", row[4])
		}
		return differences
	}
	d := here[0]
	if d.Wrong != "" {
		return nil // nvidia-smi prints errors in place of numbers
	}
	if d.UUID != row[0] {
		differs("UUID", d.UUID, row[0])
	}
	if d.Name != row[1] {
		differs("name", d.Name, row[1])
	}
	total, err := strconv.ParseInt(row[2], 10, 64)
	if err != nil {
		differs("memory", d.Memory, row[2])
		return differences
	}
	want, slack := quantity.Bytes(total)<<20, 3*quantity.MiB // both numbers are rounded
	if len(row) > 3 {
		if reserved, err := strconv.ParseInt(row[3], 10, 64); err == nil {
			want -= quantity.Bytes(reserved) << 20
		}
	} else {
		slack = want / 20 // what is reserved is not told
	}
	if d.Memory > want+slack || d.Memory < want-slack {
		differs("memory", d.Memory, want)
	}
	return differences
}
