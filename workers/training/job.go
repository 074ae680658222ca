package training

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

const (
	// DefaultBatch is how many samples a step has where a job does not say.
	DefaultBatch = 64
	mostBatch    = 1 << 24
	// MostDataWorkers are the most processes that may fetch data: more than hosts have cores.
	MostDataWorkers = 1024
)

// deviceSet is what may be used.
type deviceSet struct {
	all []exec.Device
	// own says that they are this process's CPUs, which can be joined; devices that the caller names are taken as they
	// are.
	own bool
	// seen is what is known of CUDA devices, by ID, once they were looked at.
	seen map[string]exec.Surveyed
	// spans are those of each host, where the parts of one replica are on several: as many on each.
	spans []deviceSet
}

// of returns the devices of k parts.
func (d deviceSet) of(k int) (all []exec.Device) {
	if d.spans != nil {
		for _, host := range d.spans {
			all = append(all, host.of(k/len(d.spans))...)
		}
		return all
	}
	if d.own {
		return joined(d.all, k)
	}
	return d.all[:k]
}

// normalized returns the job with its defaults and its devices, or what is wrong with it. Nothing of the directories is
// looked at.
func (j Job) normalized() (Job, deviceSet, error) {
	if err := errors.Join(j.checkNumbers(), j.checkNames(), checkDevices(j.Devices), j.CheckReplicas()); err != nil {
		return j, deviceSet{}, err
	}
	j.Batch = cmp.Or(j.Batch, DefaultBatch)
	if j.MicroBatches > j.Batch {
		return j, deviceSet{}, fmt.Errorf("%d micro-batches of a batch of %d samples; choose at most as many", j.MicroBatches,
			j.Batch)
	}
	devices := deviceSet{all: slices.Clone(j.Devices)}
	for i, d := range devices.all {
		if d.Kind == exec.CUDA { // its operations use no CPU threads
			devices.all[i].Threads = 0
		}
	}
	if j.Devices == nil {
		own, err := Devices()
		if err != nil {
			return j, deviceSet{}, err
		}
		devices = deviceSet{all: besideData(own, j.Partitions, j.DataWorkers), own: true}
	}
	if j.Partitions > len(devices.all) {
		return j, deviceSet{}, fmt.Errorf("%d parts on %d devices; choose at most as many, or name more devices",
			j.Partitions, len(devices.all))
	}
	if j.Steps == 0 {
		j.Epochs = cmp.Or(j.Epochs, 1)
	}
	j.Schedule = cmp.Or(j.Schedule, OneForwardOneBackward)
	j.Precision = cmp.Or(j.Precision, exec.Float32)
	j.Recompute = cmp.Or(j.Recompute, RecomputeAuto)
	j.Logger = cmp.Or(j.Logger, slog.New(slog.DiscardHandler))
	return j, devices, nil
}

// besideData are the CPUs that are left to parts where somebody wants so many processes that fetch data: a core less
// for each process, but one for each part that is asked for.
func besideData(own []exec.Device, parts, dataWorkers int) []exec.Device {
	if dataWorkers <= 0 {
		return own
	}
	return own[:max(len(own)-dataWorkers, min(max(parts, 1), len(own)))]
}

// checkNumbers refuses amounts that make no sense.
func (j Job) checkNumbers() error {
	var problems []error
	if j.Executor == nil {
		problems = append(problems, errors.New("there is no executor"))
	}
	replicas := j.Replicas
	if replicas == AutoReplicas {
		replicas = 0
	}
	for _, n := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"partitions", int64(j.Partitions), mostBatch},
		{"batch", int64(j.Batch), mostBatch},
		{"micro-batches", int64(j.MicroBatches), mostBatch},
		{"replicas", int64(replicas), mostReplicas},
		{"steps", j.Steps, math.MaxInt64},
		{"steps between evaluations", j.EvaluateEvery, math.MaxInt64},
		{"patience", int64(j.Patience), math.MaxInt64},
		{"epochs", int64(j.Epochs), math.MaxInt64},
	} {
		if n.value < 0 || n.value > n.most {
			problems = append(problems, fmt.Errorf("%s is %d; want 0 to %d", n.name, n.value, n.most))
		}
	}
	if j.Steps > 0 && j.Epochs > 0 {
		problems = append(problems, fmt.Errorf("both %d steps and %d epochs; give one of them", j.Steps, j.Epochs))
	}
	if _, err := ParseGoal(j.Best); err != nil {
		problems = append(problems, fmt.Errorf("best: %w", err))
	}
	if j.DataWorkers < NoDataWorkers || j.DataWorkers > MostDataWorkers || j.DataTimeout < 0 {
		problems = append(problems, fmt.Errorf("%d processes for the data, with a timeout of %v; want %d to %d processes, "+
			"and no timeout below 0", j.DataWorkers, j.DataTimeout, NoDataWorkers, MostDataWorkers))
	}
	o := j.Optimizer
	for _, n := range []struct {
		name        string
		value, most float64
	}{
		{"clip norm", j.ClipNorm, math.MaxFloat64},
		{"least improvement", j.MinDelta, math.MaxFloat64},
		{"learning rate", o.LearningRate, math.MaxFloat64},
		{"momentum", o.Momentum, 1},
		{"beta1", o.Beta1, 1},
		{"beta2", o.Beta2, 1},
		{"epsilon", o.Epsilon, math.MaxFloat64},
		{"weight decay", o.WeightDecay, math.MaxFloat64},
	} {
		if !(n.value >= 0 && n.value <= n.most) {
			problems = append(problems, fmt.Errorf("the %s is %v; want 0 or more, and no more than %v", n.name, n.value, n.most))
		}
	}
	return errors.Join(problems...)
}

// checkNames refuses words that mean nothing, with those that are near.
func (j Job) checkNames() error {
	var problems []error
	for _, word := range []struct {
		name, value string
		known       []string
	}{
		{"schedule", j.Schedule, []string{OneForwardOneBackward, GPipe}},
		{"precision", string(j.Precision), precisions()},
		{"recompute", j.Recompute, []string{RecomputeAuto, RecomputeNever, RecomputeAlways}},
		{"result", j.Result, []string{ResultLast, ResultBest}},
		{"optimizer", j.Optimizer.Kind, []string{exec.SGD, exec.Momentum, exec.Adam, exec.AdamW}},
	} {
		problems = append(problems, oneOf(word.name, word.value, word.known))
	}
	return errors.Join(problems...)
}

func precisions() []string {
	var names []string
	for _, p := range exec.Precisions() {
		names = append(names, string(p))
	}
	return names
}

// oneOf refuses a value that is none of those known; the empty one is the default.
func oneOf(name, value string, known []string) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	if near := nearest.Names(value, known); len(near) > 0 {
		return fmt.Errorf("%s %q is unknown; did you mean %s?", name, value, strings.Join(near, ", "))
	}
	return fmt.Errorf("%s %q is unknown; want %s", name, value, strings.Join(known, ", "))
}

// checkDevices refuses devices that cannot be told apart, and those of which only some have a bound.
func checkDevices(devices []exec.Device) error {
	if devices != nil && len(devices) == 0 {
		return errors.New("there are no devices; name some, or leave them to the process")
	}
	seen := map[string]bool{}
	bounded := map[string]bool{}
	for _, d := range devices {
		if d.Memory > 0 {
			bounded[cmp.Or(d.Kind, exec.CPU)] = true
		}
	}
	var problems []error
	for i, d := range devices {
		switch {
		case d.ID == "":
			problems = append(problems, fmt.Errorf("device %d has no ID", i))
		case seen[d.ID]:
			problems = append(problems, fmt.Errorf("device %q is named twice; each takes one part", d.ID))
		}
		seen[d.ID] = true
		problems = append(problems, oneOf("device "+d.ID+": kind", d.Kind, []string{exec.CPU, exec.CUDA}))
		if d.Index < 0 || d.Threads < 0 || d.Memory < 0 {
			problems = append(problems, fmt.Errorf("device %s: index %d, threads %d, memory %d; want 0 or more", d.ID, d.Index,
				d.Threads, d.Memory))
		}
		if d.Memory == 0 && bounded[cmp.Or(d.Kind, exec.CPU)] {
			problems = append(problems, fmt.Errorf("device %s: memory of %v, though others of its kind have a bound; give "+
				"it one, too", d.ID, quantity.Bytes(0)))
		}
	}
	return errors.Join(problems...)
}
