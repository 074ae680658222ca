package display

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// Plan returns the lines that tell a partition.
func Plan(p appraisal.Report, s Style) []string {
	lines := graphLines(p)
	if p.Infeasible != nil {
		lines = append(lines, infeasibleLines(p)...)
	}
	if p.Plan != nil {
		lines = append(lines, planLines(p)...)
	}
	for _, note := range p.Notes {
		lines = append(lines, wrapped("note   ", note, tableWidth)...)
	}
	if p.Plan != nil {
		lines = append(append(lines, ""), deviceLines(p, s)...)
		if p.Plan.Schedule != nil && p.Plan.Schedule.Name != streamName {
			lines = append(append(lines, ""), pipelineLines(p, s)...)
		}
		lines = append(append(lines, ""), frontLines(p, s)...)
	}
	if len(p.Baselines) > 0 {
		lines = append(append(lines, ""), baselineLines(p, s)...)
	}
	return lines
}

func graphLines(p appraisal.Report) []string {
	g := p.Graph
	ops := Count(g.Ops, "operation")
	if g.BackwardOps > 0 {
		ops += fmt.Sprintf(" (%d backward)", g.BackwardOps)
	}
	parts := []string{fmt.Sprintf("%s (%s):", cut(Clean(g.Name), 40), g.Format), ops, Count(g.Edges, "edge")}
	for _, amount := range []struct {
		bytes quantity.Bytes
		what  string
	}{{g.ParameterBytes, "parameters"}, {g.ActivationBytes, "activations"}, {g.WorkspaceBytes, "workspace"}} {
		if amount.bytes > 0 {
			parts = append(parts, amount.bytes.String()+" of "+amount.what)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(g.TotalSeconds)) {
		parts = append(parts, brief(g.TotalSeconds[class])+" on one "+Clean(class))
	}
	for i := range parts[1 : len(parts)-1] {
		parts[i+1] += ","
	}
	return wrappedWords("graph  ", parts, tableWidth)
}

func planLines(p appraisal.Report) []string {
	plan := p.Plan
	text := fmt.Sprintf("%s %s, at least %s", measured(p.Objective), brief(plan.Seconds), brief(plan.LowerBoundSeconds))
	if plan.Optimal {
		text += " (no contiguous plan is faster)"
	}
	if len(plan.Stages) > 0 {
		text += ", " + Count(len(plan.Stages), "stage")
	}
	if p.Objective == "step" {
		text += ", " + batches(plan.MicroBatches) + ", at most " + Count(plan.MostReplicas, "replica")
	}
	lines := wrapped("plan   ", text, tableWidth)
	if c := plan.Schedule; c != nil && c.Name != streamName {
		lines = append(lines, wrapped("       ", fmt.Sprintf("the schedule %s takes %s when it is simulated, with a bubble "+
			"of %s: waiting and sums of gradients",
			c.Name, brief(c.Seconds), percent(c.Bubble)), tableWidth)...)
		if c.Seconds > plan.Seconds*(1+mostOptimism) {
			lines = append(lines, wrapped("       ", "that is longer than the formula says by which plans are compared: count "+
				"on the simulated time", tableWidth)...)
		}
	}
	if plan.PicodollarsPerHour > 0 {
		lines = append(lines, "       the devices in use cost "+plan.PicodollarsPerHour.String()+" per hour")
	}
	return append(lines, wrapped("why    ", plan.Reason, tableWidth)...)
}

// mostOptimism is by which part the formula for the time of a step may be below the simulation before that is told.
const mostOptimism = 0.02

// batches counts micro-batches.
func batches(n int) string {
	if n == 1 {
		return "1 micro-batch"
	}
	return strconv.Itoa(n) + " micro-batches"
}

// streamName is the schedule of batches that follow each other without end.
const streamName = "stream"

// measured is what an objective measures.
func measured(objective string) string {
	switch objective {
	case "step":
		return "a training step takes"
	case "latency":
		return "a batch takes"
	default:
		return "a batch leaves every"
	}
}

// memoryBar is that of a device's memory bar.
const memoryBar = 20

func deviceLines(p appraisal.Report, s Style) []string {
	t := newTable("device", ">stage", ">ops", ">load", "peak memory", ">", ">sends")
	unused := 0
	for _, d := range p.Plan.Devices {
		if len(d.Ops) == 0 {
			unused++
			continue
		}
		stage, sends := "-", d.SentBytes.String()
		if p.Graph.TransfersMeasured {
			sends = "-"
		}
		if d.Stage > 0 {
			stage = strconv.Itoa(d.Stage)
		}
		t.add(cut(Clean(d.ID), 18), stage, strconv.Itoa(len(d.Ops)), brief(d.LoadSeconds),
			Style{ASCII: s.ASCII}.bar(columnsOf(d), memoryBar, memoryBar),
			peak(d), sends)
	}
	lines := t.lines(s, "")
	if unused > 0 {
		lines = append(lines, Count(unused, "device")+" not used")
	}
	return lines
}

// columnsOf is how many columns of the bar are full, rounded up, so that only an empty device has an empty bar.
func columnsOf(d appraisal.Device) int {
	if d.MemoryBytes <= 0 {
		return 0
	}
	return min(int(math.Ceil(memoryBar*float64(d.PeakBytes)/float64(d.MemoryBytes))), memoryBar)
}

func peak(d appraisal.Device) string {
	if d.MemoryBytes <= 0 {
		return d.PeakBytes.String()
	}
	return d.PeakBytes.String() + " of " + d.MemoryBytes.String()
}

// pipelineLines tell the stages of a training step.
func pipelineLines(p appraisal.Report, s Style) []string {
	t := newTable("stage", ">devices", "first .. last operation", ">forward", ">backward", ">send", ">all-reduce",
		">in flight")
	again := false
	for i, stage := range p.Plan.Stages {
		backward := brief(stage.BackwardSeconds)
		if stage.Recompute {
			again = true
			backward += "*"
		}
		t.add(strconv.Itoa(i+1), strconv.Itoa(len(stage.Devices)), ends(stage.Ops), brief(stage.ForwardSeconds), backward,
			brief(stage.SendSeconds),
			brief(stage.AllReduceSeconds), strconv.Itoa(stage.InFlight))
	}
	lines := t.lines(s, "")
	if again {
		lines = append(lines, "* with activations that are computed again")
	}
	return lines
}

// ends names the first and the last operation of a stage.
func ends(ops []string) string {
	const widest = 12
	if len(ops) == 0 {
		return "-"
	}
	first, last := cut(Clean(ops[0]), widest), cut(Clean(ops[len(ops)-1]), widest)
	if len(ops) == 1 {
		return first
	}
	return first + " .. " + last
}

func frontLines(p appraisal.Report, s Style) []string {
	t := newTable("plans, fastest first", ">time", ">idle memory", ">devices", ">stages", ">micro-batches", ">per hour")
	for i, choice := range p.Front {
		name := "  " + strconv.Itoa(i+1)
		if choice.Chosen {
			name = "> " + strconv.Itoa(i+1) + " chosen"
		}
		price := "-"
		if choice.PicodollarsPerHour > 0 {
			price = choice.PicodollarsPerHour.String()
		}
		t.add(name, brief(choice.Seconds), choice.IdleBytes.String(), strconv.Itoa(choice.Devices), dashed(choice.Stages),
			strconv.Itoa(choice.MicroBatches), price)
	}
	return t.lines(s, "")
}

func dashed(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func baselineLines(p appraisal.Report, s Style) []string {
	t := newTable("beside it", ">time", "")
	for _, b := range p.Baselines {
		switch {
		case b.Problem != "":
			t.add(b.Name, "-", cut(Clean(b.Problem), 70))
		case b.ShortDevice != "":
			t.add(b.Name, "-", fmt.Sprintf("does not fit: %s lacks %s", cut(Clean(b.ShortDevice), 30), b.ShortBytes))
		default:
			beside := ""
			if p.Plan != nil && p.Plan.Seconds > 0 {
				beside = strconv.FormatFloat(b.Seconds/p.Plan.Seconds, 'f', 2, 64) + " times the plan's"
			}
			t.add(b.Name, brief(b.Seconds), beside)
		}
	}
	return t.lines(s, "")
}

func infeasibleLines(p appraisal.Report) []string {
	v := p.Infeasible
	lines := wrapped("plan   ", "none: "+v.Reason, tableWidth)
	if v.ShortDevice != "" {
		lines = append(lines, wrapped("short  ", fmt.Sprintf("%s lacks %s (%d bytes), in the plan that lacks least",
			Clean(v.ShortDevice), v.ShortBytes, int64(v.ShortBytes)), tableWidth)...)
	}
	if len(v.Remedies) == 0 {
		return append(lines, wrapped("helps  ", "no single change: not more devices, and for a training step not "+
			"recomputation, more micro-batches, ZeRO or "+
			"keeping the optimizer's state in the memory of the host", tableWidth)...)
	}
	for i, remedy := range v.Remedies {
		first := "helps  "
		if i > 0 {
			first = "       "
		}
		lines = append(lines, wrapped(first, remedy.Change+": then "+measured(p.Objective)+" "+brief(remedy.Seconds),
			tableWidth)...)
	}
	return lines
}

// brief writes a time with three digits, from nanoseconds up: "13.2 us", "420 ms", "1.5 s".
func brief(value float64) string {
	const digits = 3
	unit, name := 1.0, "s"
	switch {
	case math.IsNaN(value) || value < 0:
		return "-"
	case value == 0:
		return "0 s"
	case value >= 99.95:
		return seconds(value)
	case value < 0.9995e-6:
		unit, name = 1e9, "ns"
	case value < 0.9995e-3:
		unit, name = 1e6, "us"
	case value < 0.9995:
		unit, name = 1e3, "ms"
	}
	text := strconv.FormatFloat(value*unit, 'g', digits, 64)
	if rounded, err := strconv.ParseFloat(text, 64); err == nil { // 1e+02 is written as 100
		text = strconv.FormatFloat(rounded, 'f', -1, 64)
	}
	return cmp.Or(text, "0") + " " + name
}
