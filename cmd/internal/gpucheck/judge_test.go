package gpucheck

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

func gpu(index int, free quantity.Bytes) device.State {
	uuid := []string{"GPU-aa", "GPU-bb", "GPU-cc"}[index]
	return device.State{
		Device: device.Device{
			UUID: uuid, Index: index, Instance: -1, Name: "NVIDIA A100-SXM4-40GB", Class: "a100",
			Memory: 39*quantity.GiB + 512*quantity.MiB,
		}, Free: free,
	}
}

func instance(number int, uuid string) device.State {
	d := gpu(0, 5*quantity.GiB)
	d.UUID, d.Instance, d.Memory = uuid, number, 5*quantity.GiB
	return d
}

func TestTheDeviceWithMostRoomIsAssigned(t *testing.T) {
	t.Parallel()
	const empty = "empty" // set, and empty; "" is not set
	broken := gpu(1, 30*quantity.GiB)
	broken.Wrong = "has fallen off the bus"
	for _, tt := range []struct {
		name    string
		devices []device.State
		visible string
		want    string
	}{
		{"no device", nil, "", ""},
		{"an empty value hides all", []device.State{gpu(0, quantity.GiB)}, empty, ""},
		{"the one", []device.State{gpu(0, quantity.GiB)}, "", "GPU-aa"},
		{"more room", []device.State{gpu(0, 30*quantity.GiB), gpu(1, 39*quantity.GiB), gpu(2, quantity.GiB)}, "", "GPU-bb"},
		{"as much room", []device.State{gpu(0, 39*quantity.GiB), gpu(1, 39*quantity.GiB)}, "", "GPU-bb"},
		{"broken", []device.State{gpu(0, quantity.GiB), broken}, "", "GPU-aa"},
		{"not ours", []device.State{gpu(0, quantity.GiB), gpu(1, 39*quantity.GiB)}, "0", "GPU-aa"},
		{"not ours by UUID", []device.State{gpu(0, quantity.GiB), gpu(1, 39*quantity.GiB)}, "GPU-a", "GPU-aa"},
		{"none is ours", []device.State{gpu(0, quantity.GiB)}, "-1", ""},
	} {
		visible := &tt.visible
		switch tt.visible {
		case "":
			visible = nil
		case empty:
			visible = new(string)
		}
		got, chosen := assign(tt.devices, visible)
		if got.UUID != tt.want || chosen != (tt.want != "") {
			t.Errorf("%s: %q, %t; want %q", tt.name, got.UUID, chosen, tt.want)
		}
	}
}

func TestTheInventoryIsComparedWithThatOfNvidiaSMI(t *testing.T) {
	t.Parallel()
	two := []device.State{gpu(0, quantity.GiB), gpu(1, quantity.GiB)}
	const list = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)
`
	const cut = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)
  MIG 1g.5gb      Device  0: (UUID: MIG-11)
  MIG 1g.5gb      Device  1: (UUID: MIG-22)
`
	for _, tt := range []struct {
		name       string
		devices    []device.State
		rows, list string
		want       []string // what each difference tells of
	}{
		{
			"the same", two, "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, Disabled\n" +
				"1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960, 513, Disabled\n", list, nil,
		},
		{
			"an old nvidia-smi", two, "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960\n1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960\n",
			list, nil,
		},
		{
			"another UUID, name and memory", two, "0, GPU-xx, NVIDIA A100-SXM4-40GB, 40960, 512, [N/A]\n" +
				"1, GPU-bb, NVIDIA A100-PCIE-40GB, 40536, 512, [N/A]\n", list, []string{"UUID", "name", "memory"},
		},
		{
			"one more", two[:1], "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, [N/A]\n" +
				"1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960, 512, [N/A]\n", list, []string{"not read", "1 GPUs"},
		},
		{"one less", two, "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, [N/A]\n", list, []string{"2 GPUs"}},
		{
			"instances",
			[]device.State{instance(0, "MIG-11"), instance(1, "MIG-22")},
			"0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, Enabled\n", cut, nil,
		},
		{
			"an instance less",
			[]device.State{instance(0, "MIG-11")},
			"0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, Enabled\n", cut,
			[]string{"instances"},
		},
		{
			"instances that are not read", two[:1], "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 512, Enabled\n", cut,
			[]string{"instances"},
		},
		{"nonsense", nil, "Field \"memory\" is not a valid field to query.\n", "", []string{"no row"}},
	} {
		got := inventoryDiffers(tt.devices, tt.rows, tt.list)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q; want one of each of %q", tt.name, got, tt.want)
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q; want something of %q", tt.name, got[i], want)
			}
		}
	}
}

func TestADeviceThatWasNotAssignedIsSeenToBeTouched(t *testing.T) {
	t.Parallel()
	with := func(d device.State, used quantity.Bytes, pids ...int) device.State {
		d.Used = used
		for _, pid := range pids {
			d.Processes = append(d.Processes, device.Process{PID: pid, Memory: used})
		}
		return d
	}
	inside := func(d device.State) device.State {
		d.PIDsUnknown = true
		return d
	}
	a, b := gpu(0, 0), gpu(1, 0)
	idle := []device.State{a, b}
	ours := []int{10, 11}
	for _, tt := range []struct {
		name    string
		later   []device.State
		outcome Outcome
		says    string
	}{
		{"nothing happened", idle, Skipped, "nothing was computed"},
		{"the assigned one", []device.State{with(a, quantity.GiB, 10), b}, Passed, "1 processes of the check"},
		{"both", []device.State{with(a, quantity.GiB, 10), with(b, quantity.GiB, 11)}, Failed, "processes [11] of the check"},
		{"others on the other", []device.State{with(a, quantity.GiB, 10), with(b, quantity.GiB, 99)}, Passed, ""},
		{"a container, the assigned one", []device.State{with(a, quantity.GiB), b}, Passed, ""},
		{
			"a container, both",
			[]device.State{with(a, quantity.GiB), with(b, quantity.GiB)},
			Failed,
			"1 GiB more in use",
		},
		{
			"a container, the number of one of ours by chance",
			[]device.State{inside(with(a, quantity.GiB, 4010)), inside(with(b, 0, 11))},
			Passed,
			"",
		},
		{
			"a container, the number of one of ours by chance, both",
			[]device.State{inside(with(a, quantity.GiB, 10)), inside(with(b, quantity.GiB, 4011))},
			Failed,
			"1 GiB more in use",
		},
		{"a container, numbers of others", []device.State{with(a, quantity.GiB, 4010), with(b, 0, 4011)}, Passed, ""},
	} {
		var seen touched
		seen.add(device.Reading{Devices: idle}, ours[:1])
		seen.add(device.Reading{Devices: tt.later}, ours)
		outcome, why, notes := seen.judge("GPU-aa")
		if outcome != tt.outcome || !strings.Contains(strings.Join(append(why, notes...), "\n"), tt.says) {
			t.Errorf("%s: %s, %q, %q; want %s and %q", tt.name, outcome, why, notes, tt.outcome, tt.says)
		}
	}
	if outcome, _, _ := (&touched{}).judge("GPU-aa"); outcome != Skipped {
		t.Errorf("without a reading: %s", outcome)
	}
}

func TestDevicesThatAreNoLongerReadAreNotSeenToBeUntouched(t *testing.T) {
	t.Parallel()
	c := check{watch: &watch{}}
	c.report.Machine.Assigned = "GPU-aa"
	busy := gpu(0, 0)
	busy.Used = quantity.GiB
	for _, d := range []device.State{gpu(0, 0), busy} {
		c.watch.seen.add(device.Reading{Devices: []device.State{d}}, nil)
	}
	var r Result
	if c.assigned(&r); r.Outcome != Passed {
		t.Fatalf("%s, %q, %q; want passed", r.Outcome, r.Why, r.Notes)
	}
	c.watch.wrong = errors.New("the driver has gone")
	if c.assigned(&r); r.Outcome != Failed || !strings.Contains(strings.Join(r.Why, "\n"), "the driver has gone") {
		t.Errorf("%s, %q; want failed, and why the watch ended", r.Outcome, r.Why)
	}
}

func TestAStepIsJudgedByItsFiguresAndItsEnd(t *testing.T) {
	t.Parallel()
	within, above := Figure{Name: "it", Value: 1.04, Unit: "times", Bar: 1.05}, Figure{
		Name: "it", Value: 1.06, Unit: "times", Bar: 1.05,
	}
	for _, tt := range []struct {
		name   string
		result Result
		ended  error
		want   Outcome
		why    string
	}{
		{"within", Result{Figures: []Figure{within}, Complete: true}, nil, Passed, ""},
		{"above", Result{Figures: []Figure{within, above}, Complete: true}, nil, Failed, "it is 1.06 times; at most 1.05"},
		{"told alone", Result{Figures: []Figure{{Name: "it", Value: 9}}, Complete: true}, nil, Passed, ""},
		{"half-way", Result{Figures: []Figure{within}}, nil, Failed, "ended before"},
		{"broken", Result{Figures: []Figure{within}, Complete: true}, errors.New("exit status 2"), Failed, "exit status 2"},
		{"skipped by itself", Result{Outcome: Skipped, Complete: true}, nil, Skipped, ""},
	} {
		r := tt.result
		r.settle(tt.ended)
		if r.Outcome != tt.want || !strings.Contains(strings.Join(r.Why, "; "), tt.why) {
			t.Errorf("%s: %s, %q; want %s, %q", tt.name, r.Outcome, r.Why, tt.want, tt.why)
		}
	}
}

func TestWhatAStepFindsIsKeptAsItFindsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "result.json")
	r := &Recorder{path: path, judge: true}
	training := predictor.Training{
		Batch: 4, Parts: []predictor.TrainingPart{
			{PredictedPeakBytes: 90, PeakBytes: 100}, {PredictedPeakBytes: 130, PeakBytes: 100},
		},
	}
	if err := errors.Join(r.Figure("ratio", 2, "times", 3), r.Note("%d words", 2), r.Trained("a", training)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"2 words"`) || !strings.Contains(string(text), `"bar": 3`) {
		t.Errorf("%v: %s", err, text)
	}
	if off := peakError(training); off < 0.299 || off > 0.301 {
		t.Errorf("the peaks are off by %v; want 0.3", off)
	}
	if off := peakError(predictor.Training{}); !math.IsInf(off, 1) {
		t.Errorf("the peaks of no parts are off by %v; want infinity: nothing was compared", off)
	}
	for _, tt := range []struct {
		got, want []float64
		apart     float64
	}{{[]float64{2, 4}, []float64{2, 5}, 0.2}, {[]float64{2}, []float64{2}, 0}} {
		if got := apart(tt.got, tt.want); got < tt.apart-1e-9 || got > tt.apart+1e-9 {
			t.Errorf("%v beside %v: %v; want %v", tt.got, tt.want, got, tt.apart)
		}
	}
}

func TestTheReportTellsPeopleWhatWorksAndWhy(t *testing.T) {
	t.Parallel()
	report := Report{
		Version: "v1", Started: time.Date(2026, 11, 24, 4, 0, 0, 0, time.UTC), Seconds: 61,
		Machine: Machine{
			System: "linux", Cores: 8, Driver: "550", CUDA: "12.4", GPUs: []device.Device{gpu(0, 0).Device},
			Assigned: "GPU-aa", Executable: "/usr/bin/python3", Python: "3.11", Torch: "2.9", TorchCUDA: "12.8",
			Device: "cuda", Name: "NVIDIA A100",
		},
		Steps: []Result{
			{
				Name: stepPlain, Title: "beside plain PyTorch", Outcome: Failed, Seconds: 12, Why: []string{"too slow"},
				Figures: []Figure{{Name: "ratio", Value: 1.2, Unit: "times", Bar: 1.05}}, LogFile: "logs/plain.txt",
				Log: "the ```last``` words",
			},
			{Name: stepShared, Title: "sharing"},
			{Name: stepPeaks, Title: "peaks", Outcome: Skipped, Notes: []string{"no time"}},
		},
	}
	text := report.Markdown()
	for _, want := range []string{
		"1 failed (plain); none passed; 1 skipped (peaks); it is going on, or the machine was lost",
		"Spillway v1, 2026-11-24 04:00 UTC, 61 s.", "GPU 0: NVIDIA A100-SXM4-40GB, 39.5 GiB, GPU-aa, the one that is used",
		"/usr/bin/python3: Python 3.11, torch 2.9 with CUDA 12.8", "| plain | failed | 12 | beside plain PyTorch |",
		"| shared | not known yet |", "- **too slow**", "- ratio: 1.2 times (at most 1.05 times)", "logs/plain.txt",
		"the '''last''' words", "- no time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestStepsAreChosenByName(t *testing.T) {
	t.Parallel()
	some, err := chosen([]string{stepPeaks, stepInventory})
	var names []string
	for _, s := range some {
		names = append(names, s.name)
	}
	if diff := cmp.Diff([]string{stepInventory, stepPeaks}, names); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if _, err := chosen([]string{"peeks"}); err == nil || !strings.Contains(err.Error(), stepPeaks) {
		t.Errorf("a step that is not there: %v", err)
	}
	all := StepNames()
	if slices.Index(all, stepConformance) > slices.Index(all, stepPlain) {
		t.Errorf("%q: the speed of what may be wrong comes first", all)
	}
}
