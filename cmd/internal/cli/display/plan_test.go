package display_test

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// stepPartition is a training step of two stages, the first of them with two replicas, beside an idle device.
func stepPartition() appraisal.Report {
	return appraisal.Report{
		Graph: appraisal.Graph{
			Name: "chain.json", Format: "spillway", Ops: 6, Edges: 5, ParameterBytes: 3 * quantity.GiB,
			ActivationBytes: 12 * quantity.GiB,
			TotalSeconds:    map[string]float64{"accelerator": 0.6, "cpu": 42},
		},
		Objective: "step", Training: true,
		Plan: &appraisal.Plan{
			Seconds: 0.25, LowerBoundSeconds: 0.2, MicroBatches: 4, MostReplicas: 2, IdleBytes: 5 * quantity.GiB,
			PicodollarsPerHour: 3 * quantity.USD,
			Reason:             "2 stages of 4 micro-batches, along the order of the graph",
			Stages: []appraisal.Stage{
				{
					Devices: []string{"gpu-1", "gpu-2"}, Ops: []string{"embedding", "attention", "a layer of a long name"},
					ForwardSeconds: 0.02, BackwardSeconds: 0.03, SendSeconds: 0.0005, AllReduceSeconds: 0.004, InFlight: 2,
					Recompute: true,
				},
				{Devices: []string{"gpu-3"}, Ops: []string{"head"}, ForwardSeconds: 0.015, BackwardSeconds: 0.035, InFlight: 1},
			},
			Devices: []appraisal.Device{
				{
					ID: "gpu-1", Class: "accelerator", Stage: 1, Ops: []string{"embedding", "attention", "a layer of a long name"},
					LoadSeconds: 0.2, PeakBytes: 16 * quantity.GiB, MemoryBytes: 16 * quantity.GiB, SentBytes: 20 * quantity.MiB,
				},
				{
					ID: "gpu-2", Class: "accelerator", Stage: 1, Ops: []string{"embedding", "attention", "a layer of a long name"},
					LoadSeconds: 0.2, PeakBytes: 16 * quantity.GiB, MemoryBytes: 16 * quantity.GiB, SentBytes: 20 * quantity.MiB,
				},
				{
					ID: "gpu-3", Class: "accelerator", Stage: 2, Ops: []string{"head"}, LoadSeconds: 0.2, PeakBytes: quantity.MiB,
					MemoryBytes: 16 * quantity.GiB,
				},
				{ID: "host", Class: "cpu", Ops: []string{}, MemoryBytes: 64 * quantity.GiB},
			},
			Schedule: &appraisal.Schedule{Name: "1f1b", Seconds: 0.24, Bubble: 0.125, Spans: []appraisal.Span{
				{Stage: 1, Kind: "forward", MicroBatch: 1, EndSeconds: 0.02},
				{Stage: 1, Kind: "backward", MicroBatch: 1, StartSeconds: 0.07, EndSeconds: 0.1},
				{Stage: 1, Kind: "all-reduce", MicroBatch: 1, StartSeconds: 0.236, EndSeconds: 0.24},
				{Stage: 2, Kind: "forward", MicroBatch: 1, StartSeconds: 0.0205, EndSeconds: 0.0355},
				{Stage: 2, Kind: "backward", MicroBatch: 1, StartSeconds: 0.0355, EndSeconds: 0.0705},
			}},
		},
		Front: []appraisal.Choice{
			{
				Seconds: 0.2, IdleBytes: 9 * quantity.GiB, Devices: 4, Stages: 3, MicroBatches: 8,
				PicodollarsPerHour: 4 * quantity.USD,
			},
			{
				Chosen: true, Seconds: 0.25, IdleBytes: 5 * quantity.GiB, Devices: 3, Stages: 2, MicroBatches: 4,
				PicodollarsPerHour: 3 * quantity.USD,
			},
		},
		Baselines: []appraisal.Baseline{
			{Name: "even split", Seconds: 0.5},
			{Name: "data parallel", ShortDevice: "gpu-1", ShortBytes: 3 * quantity.GiB},
			{Name: "single device", Problem: `device "gpu-1" cannot run operation "head"`},
		},
		Notes: []string{"no links are given: tensors travel in no time"},
	}
}

// latencyPartition is one batch over two devices without an order between them.
func latencyPartition() appraisal.Report {
	return appraisal.Report{
		Graph: appraisal.Graph{
			Name: "fork", Format: "dnn-partitioning", Ops: 1, Edges: 0, BackwardOps: 1,
			WorkspaceBytes: quantity.MiB, TransfersMeasured: true,
		},
		Objective: "latency",
		Plan: &appraisal.Plan{
			Seconds: 2e-7, LowerBoundSeconds: 1.5e-7, Optimal: true, MicroBatches: 1, MostReplicas: 1,
			Reason: "earliest task first",
			Devices: []appraisal.Device{
				{ID: "a", Stage: 0, Ops: []string{"x"}, LoadSeconds: 1e-7, PeakBytes: quantity.MiB},
				{
					ID: "b", Stage: 0, Ops: []string{"y", "z"}, LoadSeconds: 2.5e-7, PeakBytes: quantity.MiB,
					MemoryBytes: 2 * quantity.MiB,
				},
			},
		},
		Front: []appraisal.Choice{{Chosen: true, Seconds: 2e-7, Devices: 2, MicroBatches: 1}},
	}
}

// slowerPartition takes longer in the simulation than by the formula.
func slowerPartition() appraisal.Report {
	p := stepPartition()
	p.Plan.Schedule.Seconds = 0.26
	return p
}

// noPartition does not fit.
func noPartition() appraisal.Report {
	p := stepPartition()
	p.Plan, p.Front = nil, nil
	p.Infeasible = &appraisal.Infeasibility{
		Reason: "no pipeline was found that the memory of these devices holds", ShortDevice: "gpu-2",
		ShortBytes: 1_665_121_728,
		Remedies: []appraisal.Remedy{
			{Change: "1 more device like gpu-1", Seconds: 0.3},
			{Change: "ZeRO stage 2", Seconds: 120},
		},
	}
	p.Baselines = p.Baselines[1:2]
	return p
}

// hopelessPartition does not fit, and nothing helps.
func hopelessPartition() appraisal.Report {
	p := noPartition()
	p.Infeasible = &appraisal.Infeasibility{Reason: "the graph needs 2 GiB and 1 devices have 1 GiB: it does not fit"}
	return p
}

func TestPlansAreAsTheGoldenFilesHaveThem(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"plan-step":     display.Plan(stepPartition(), display.Style{Width: 80, ASCII: true}),
		"plan-unicode":  display.Plan(stepPartition(), display.Style{Width: 80}),
		"plan-latency":  display.Plan(latencyPartition(), display.Style{Width: 80, ASCII: true}),
		"plan-slower":   display.Plan(slowerPartition(), display.Style{Width: 80, ASCII: true}),
		"plan-none":     display.Plan(noPartition(), display.Style{Width: 80, ASCII: true}),
		"plan-hopeless": display.Plan(hopelessPartition(), display.Style{Width: 80, ASCII: true}),
	} {
		golden(t, name+".golden", []byte(strings.Join(lines, "\n")+"\n"))
	}
	golden(t, "plan-step-svg.golden", display.PlanSVG(stepPartition()))
}

func TestPlanLinesHaveAtMostAHundredColumns(t *testing.T) {
	t.Parallel()
	long := stepPartition()
	long.Graph.Name = strings.Repeat("name ", 50)
	for i := range long.Plan.Devices {
		long.Plan.Devices[i].ID = strings.Repeat("i", 63)
		long.Plan.Devices[i].PeakBytes, long.Plan.Devices[i].MemoryBytes = 1000*quantity.GiB, 1023*quantity.GiB
		long.Plan.Devices[i].SentBytes, long.Plan.Devices[i].LoadSeconds = 1000*quantity.MiB, 99.9
	}
	long.Plan.Reason = strings.Repeat("why ", 60)
	long.Baselines[2].Problem = strings.Repeat("because ", 60)
	for _, p := range []appraisal.Report{stepPartition(), latencyPartition(), noPartition(), hopelessPartition(), long} {
		for _, line := range display.Plan(p, display.Style{Width: 80}) {
			if n := utf8.RuneCountInString(line); n > 100 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
}

func TestThePictureIsXMLWhateverTheNames(t *testing.T) {
	t.Parallel()
	nasty := "\x00<script>alert(1)</script>&\"'\xff]]>"
	p := stepPartition()
	p.Graph.Name = nasty
	for i := range p.Plan.Devices {
		p.Plan.Devices[i].ID = nasty
	}
	failed := noPartition()
	failed.Infeasible.Reason = nasty
	for _, p := range []appraisal.Report{p, failed, latencyPartition(), {}} {
		text := display.PlanSVG(p)
		decoder := xml.NewDecoder(strings.NewReader(string(text)))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if element, ok := token.(xml.StartElement); ok &&
				!slices.Contains([]string{"svg", "title", "style", "rect", "text", "line"}, element.Name.Local) {
				t.Errorf("the picture has an element %s", element.Name.Local)
			}
		}
	}
}

func TestThePictureHasABoxForEachSpanOfEachDevice(t *testing.T) {
	t.Parallel()
	text := string(display.PlanSVG(stepPartition()))
	// Two replicas show the same three spans; the legend has one more box of each kind.
	for kind, want := range map[string]int{"forward": 2 + 1 + 1, "backward": 2 + 1 + 1, "all-reduce": 2 + 1} {
		if got := strings.Count(text, `<rect class="`+kind+`"`); got != want {
			t.Errorf("%d boxes of %s, want %d", got, kind, want)
		}
	}
	if got := strings.Count(text, "not used"); got != 1 {
		t.Errorf("%d devices are not used, want 1", got)
	}
}
