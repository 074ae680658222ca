package training_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/procfs"
	"github.com/spillway-ml/spillway/workers/training"
)

// A prediction holds where it is off by no more than bar of what was measured; share of the cases must hold, of each
// kind.
const bar, share = 0.10, 0.80

// usualCases is how many cases are measured; fewest of them must have been for their share to be worth something.
const usualCases, fewest = 40, 10

// disturbed is the part of the CPUs that other programs may take for a time to be worth something.
const disturbed = 0.05

// measuredSteps of each case are enough for a median that noise does not decide, and mostly for a plan to be tried: a
// trial takes a share of the steps at most. Where they are too few for that, it is moreSteps.
const measuredSteps, moreSteps = 60, 4 * measuredSteps

// models are the files of the families; what varies is filled in.
var models = map[string]*template.Template{
	"mlp": template.Must(template.New("mlp").Parse(`
import torch
from torch import nn

def model():
    torch.manual_seed(1)
    layers = []
    for _ in range({{.Depth}}):
        layers += [nn.Linear({{.Width}}, {{.Width}}), nn.ReLU(){{if .Dropout}}, nn.Dropout(0.1){{end}}]
    return nn.Sequential(*layers, nn.Linear({{.Width}}, 10))

def data():
    torch.manual_seed(2)
    return torch.randn(1024, {{.Width}}), torch.randint(0, 10, (1024,))
`)),
	"cnn": template.Must(template.New("cnn").Parse(`
import torch
from torch import nn

def model():
    torch.manual_seed(1)
    layers, before = [], 3
    for i in range({{.Depth}}):
        layers += [nn.Conv2d(before, {{.Width}}, 3, padding=1),
                   nn.BatchNorm2d({{.Width}}), nn.ReLU(){{if .Dropout}}, nn.Dropout(0.1){{end}}]
        layers += [nn.MaxPool2d(2)] if i in (0, 2) else []
        before = {{.Width}}
    side = 8 if {{.Depth}} > 2 else 16
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear({{.Width}} * side * side, 256), nn.ReLU(), nn.Linear(256, 10))

def data():
    torch.manual_seed(2)
    return torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
`)),
	"transformer": template.Must(template.New("transformer").Parse(`
import math
import torch
import torch.nn.functional as F
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear({{.Width}}, 3 * {{.Width}}), nn.Linear({{.Width}}, {{.Width}})
        self.norm1, self.norm2 = nn.LayerNorm({{.Width}}), nn.LayerNorm({{.Width}})
        self.drop = nn.Dropout({{if .Dropout}}0.1{{else}}0.0{{end}})
        self.up, self.down = nn.Linear({{.Width}}, 4 * {{.Width}}), nn.Linear(4 * {{.Width}}, {{.Width}})

    def forward(self, x):
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = torch.chunk(self.qkv(self.norm1(x)), 3, dim=2)
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in (q, k, v))
        weights = self.drop(F.softmax(q @ k.transpose(-2, -1) / math.sqrt({{.Width}} / 4), dim=-1))
        x = x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, {{.Width}}), nn.Linear({{.Width}}, 1000)
        self.layers = nn.ModuleList(Layer() for _ in range({{.Depth}}))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def model():
    torch.manual_seed(1)
    return Model()

def data():
    torch.manual_seed(2)
    return torch.randint(0, 1000, (256, {{.Length}})), torch.randint(0, 1000, (256, {{.Length}}))
`)),
	"gpt2": template.Must(template.New("gpt2").Parse(`
import torch
import transformers

def model():
    torch.manual_seed(1)
    drop = {{if .Dropout}}0.1{{else}}0.0{{end}}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=1000, n_positions={{.Length}}, n_embd={{.Width}}, n_layer={{.Depth}}, n_head=4,
        resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop))

def data():
    torch.manual_seed(2)
    tokens = torch.randint(0, 1000, (256, {{.Length}}))
    return {"input_ids": tokens, "labels": tokens}
`)),
}

// trial is one case: a model and how it is trained.
type trial struct {
	Family               string
	Width, Depth, Length int
	Dropout              bool

	batch, parts, microBatches     int
	replicas                       int // 2 of one part each, or 1
	schedule, recompute, optimizer string
	// beside has checkpoints made beside the steps; torch2 trains with PyTorch 2.
	beside, torch2 bool
}

func (c trial) String() string {
	version := "1"
	if c.torch2 {
		version = "2"
	}
	return fmt.Sprintf("torch %s, %s %dx%d length %d dropout %t, batch %d in %d, %d parts of %d, %s, recompute %s, %s",
		version, c.Family, c.Depth, c.Width, c.Length, c.Dropout, c.batch, c.microBatches, c.parts, c.replicas, c.schedule,
		c.recompute, c.optimizer)
}

// drawTrial draws a case whose steps take 20 to 300 ms.
func drawTrial(r *rand.Rand) trial {
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	word := func(of ...string) string { return of[r.IntN(len(of))] }
	c := trial{torch2: r.IntN(2) == 0, Dropout: r.IntN(2) == 0, beside: r.IntN(4) == 0}
	if c.Family = word("mlp", "cnn", "transformer", "gpt2"); c.Family == "gpt2" {
		c.torch2 = true // the other has no transformers
	}
	switch c.Family {
	case "mlp":
		c.Width, c.Depth, c.batch = one(768, 1024, 1536, 2048), 3+r.IntN(4), one(64, 128, 256)
	case "cnn":
		c.Width, c.Depth, c.batch = one(24, 32, 48), 3+r.IntN(3), one(32, 48, 64)
	default:
		c.Width, c.Depth, c.Length, c.batch = one(128, 192, 256), 2+r.IntN(3), one(32, 64, 128), one(8, 16)
	}
	c.parts, c.replicas, c.microBatches = 1+r.IntN(2), 1, one(1, 2, 4, 8)
	if c.torch2 && c.parts == 1 && r.IntN(3) == 0 {
		c.replicas, c.microBatches = 2, min(c.microBatches, c.batch/2)
	}
	c.schedule, c.recompute = word(training.OneForwardOneBackward, training.GPipe),
		word(training.RecomputeNever, training.RecomputeAlways)
	if c.replicas > 1 && c.Family == "gpt2" { // its replicas cannot compute the loss again yet
		c.recompute = training.RecomputeNever
	}
	c.optimizer = word(exec.SGD, exec.Momentum, exec.Adam, exec.AdamW)
	return c
}

// outcome is a case's predictions over what was measured.
type outcome struct {
	time   float64
	peaks  []float64
	others float64 // the part of the CPUs that other programs took
}

// TestMeasurePredictions trains models drawn by chance and tells how far the plan was off: of the time of a step, and
// of what each part held at most. It fails where fewer than 80 % of the cases are within 10 %. The attempt that goes on
// from the last checkpoint is measured as well, and told: its parts are other processes than those that were tried.
// SPILLWAY_MEASURE_CASES is how many cases are measured, where not all, and -run picks some of them, as
// 'TestMeasurePredictions/(00|01)$'.
func TestMeasurePredictions(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures for minutes; set SPILLWAY_MEASURE=1")
	}
	cases := usualCases
	if text := os.Getenv("SPILLWAY_MEASURE_CASES"); text != "" {
		var err error
		if cases, err = strconv.Atoi(text); err != nil || cases < 1 {
			t.Fatalf("SPILLWAY_MEASURE_CASES is %q; want a number from 1", text)
		}
	}
	const seed = 2027
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // cases, no secrets
	var first, second []outcome
	for i := range cases {
		c := drawTrial(r)
		t.Run(fmt.Sprintf("%02d", i), func(t *testing.T) {
			one, next := predicted(t, c)
			first, second = append(first, one), append(second, next)
		})
	}
	for _, problem := range summary(t, "the attempt that tried it", first) {
		t.Error(problem)
	}
	for _, problem := range summary(t, "the next attempt", second) {
		t.Log(problem)
	}
}

// worst is the largest distance from 1.
func worst(ratios []float64) float64 {
	most := 0.0
	for _, r := range ratios {
		most = max(most, math.Abs(r-1))
	}
	return most
}

// summary tells how many of the cases hold, and returns what does not.
func summary(t *testing.T, who string, all []outcome) (problems []string) {
	t.Helper()
	var times, peaks []float64
	for _, o := range all {
		peaks = append(peaks, worst(o.peaks))
		if o.others <= disturbed {
			times = append(times, math.Abs(o.time-1))
		}
	}
	t.Logf("%s: in %d of %d cases other programs took more than %.0f %% of the CPUs; their times are left out", who,
		len(all)-len(times), len(all), 100*disturbed)
	for _, one := range []struct {
		what string
		off  []float64
	}{{"the time of a step", times}, {"the peak of the part that is farthest off", peaks}} {
		if len(one.off) < fewest {
			problems = append(problems, fmt.Sprintf("%s: %s: %d cases are too few to tell; measure on an idle machine", who,
				one.what, len(one.off)))
			continue
		}
		slices.Sort(one.off)
		held, _ := slices.BinarySearch(one.off, math.Nextafter(bar, 1))
		t.Logf("%s: %s: %d of %d within %.0f %%; off by %.1f %% in the median, %.1f %% at worst", who, one.what, held,
			len(one.off), 100*bar, 100*one.off[len(one.off)/2], 100*one.off[len(one.off)-1])
		if float64(held) < share*float64(len(one.off)) {
			problems = append(problems, fmt.Sprintf("%s: %s: %d of %d within %.0f %%; want %.0f %% of them", who, one.what, held,
				len(one.off), 100*bar, 100*share))
		}
	}
	return problems
}

// predicted trains one case, and goes on from its last checkpoint.
func predicted(t *testing.T, c trial) (first, second outcome) {
	t.Helper()
	var text bytes.Buffer
	if err := models[c.Family].Execute(&text, c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	python := os.Getenv("SPILLWAY_MEASURE_PYTHON")
	switch {
	case python != "":
	case c.torch2:
		python = torchtest.Python2(t)
	default:
		python = torchtest.Python(t)
	}
	e, err := torch.New(torch.Options{Model: path + ":model", Python: python})
	if err != nil {
		t.Fatal(err)
	}
	var devices []exec.Device
	if kind := os.Getenv("SPILLWAY_MEASURE_DEVICE"); kind != "" {
		for i := range c.parts {
			devices = append(devices, exec.Device{ID: kind + "-" + strconv.Itoa(i), Kind: kind})
		}
	}
	var log bytes.Buffer
	job := training.Job{
		Executor: e, Partitions: c.parts, Devices: devices, Batch: c.batch, MicroBatches: c.microBatches,
		Replicas: c.replicas, Schedule: c.schedule, Recompute: c.recompute, Seed: 3, Directory: t.TempDir(),
		CheckpointEvery: -1,
		Optimizer:       exec.Optimizer{Kind: c.optimizer, LearningRate: 1e-4},
		Logger:          slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if c.beside {
		job.CheckpointEvery = 2 * time.Second
	}
	attempt := func(steps int64) outcome {
		job.Steps = steps
		before := usedSoFar(t)
		log.Reset()
		result, err := training.Run(t.Context(), job, training.Observer{})
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		job.Resume = result.Checkpoint
		return compare(t, c, result.Training, before.others(t))
	}
	steps := int64(measuredSteps)
	tried := func() bool { return strings.Contains(log.String(), "a layout was tried") }
	if first = attempt(steps); !tried() {
		steps, job.Directory, job.Resume = moreSteps, t.TempDir(), ""
		if first = attempt(steps); !tried() {
			t.Errorf("the plan was not tried:\n%s", log.String())
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "was tried") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return first, attempt(steps + measuredSteps)
}

// used is CPU time: that of the whole machine, the part of it that was not idle, and that of this process and of those
// below it, which live or have ended. Executors keep processes that fork others: these are not waited for here.
type used struct{ all, busy, own float64 }

// ticks of /proc are in a second; see proc(5).
const ticks = 100

func usedSoFar(t *testing.T) used {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return used{}
	}
	var u used
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first)[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		u.all += n
		if i != 3 && i != 4 { // idle, and waiting for disks
			u.busy += n
		}
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			t.Fatal(err)
		}
		u.own += float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	for _, pid := range procfs.Below(os.Getpid()) {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it has ended
		}
		const first, times = 11, 4 // utime, stime, and those of the children that it waited for; see proc(5)
		for _, field := range procfs.Fields(text)[first : first+times] {
			n, err := strconv.ParseFloat(string(field), 64)
			if err != nil {
				t.Fatal(err)
			}
			u.own += n / ticks
		}
	}
	return u
}

// others is the part of the CPUs that other programs took since.
func (u used) others(t *testing.T) float64 {
	t.Helper()
	now := usedSoFar(t)
	if now.all <= u.all {
		return 0
	}
	return max(0, ((now.busy-u.busy)/ticks-(now.own-u.own))*ticks/(now.all-u.all))
}

// compare prints a case and fails on nonsense.
func compare(t *testing.T, c trial, r predictor.Training, others float64) outcome {
	t.Helper()
	o := outcome{time: r.PredictedStepSeconds / r.StepSeconds, others: others}
	var parts []string
	for _, p := range r.Parts {
		ratio := float64(p.PredictedPeakBytes) / float64(p.PeakBytes)
		o.peaks = append(o.peaks, ratio)
		parts = append(parts, fmt.Sprintf("%v for %v (%.2f), busy %.1f for %.1f ms",
			p.PredictedPeakBytes, p.PeakBytes, ratio, p.PredictedBusySeconds*1e3, p.BusySeconds*1e3))
	}
	t.Logf("%v: predicted %.1f for %.1f ms (%.2f); %s; others took %.0f %% of the CPUs", c, r.PredictedStepSeconds*1e3,
		r.StepSeconds*1e3, o.time, strings.Join(parts, "; "), 100*others)
	for _, ratio := range append(o.peaks, o.time) {
		if !(ratio > 0) || math.IsInf(ratio, 0) {
			t.Errorf("a prediction is %v of what was measured; want both above 0", ratio)
		}
	}
	return o
}
