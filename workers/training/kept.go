package training

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// keptPlan is a plan as checkpoints keep it, so that the next attempt need not probe, rehearse and try what this one
// did. It holds as long as the same is wanted on the same devices.
type keptPlan struct {
	Wishes wishes `json:"wishes"`
	// Training is the plan in the words of a report, without anything that was measured in the training.
	Training predictor.Training `json:"training"`
	Parts    []keptPart         `json:"parts"`
	// Dataset is how many samples the data had, 0 where it does not say; CheckpointSeconds is for how long a checkpoint
	// holds the training up.
	Dataset           int     `json:"dataset,omitempty"`
	CheckpointSeconds float64 `json:"checkpoint_seconds,omitempty"`
	// DataWorkers is how many processes fetch data.
	DataWorkers int `json:"data_workers,omitempty"`
}

// keptPart is one part of it: its operations, nil for all of the unsplit model, and the number of its device among
// those of as many parts.
type keptPart struct {
	Ops    []string `json:"ops,omitempty"`
	Device int      `json:"device"`
}

// wishes are what a plan depends on besides the model, whose digest is beside them.
type wishes struct {
	Executor     string         `json:"executor"`
	Partitions   int            `json:"partitions"`
	Batch        int            `json:"batch"`
	MicroBatches int            `json:"micro_batches"`
	Schedule     string         `json:"schedule"`
	Precision    exec.Precision `json:"precision"`
	Compile      bool           `json:"compile,omitempty"`
	Optimizer    exec.Optimizer `json:"optimizer"`
	Clipped      bool           `json:"clipped"`
	// Replicas is [Job.Replicas], and 0 of one; Sharding is [Job.Sharding].
	Replicas  int           `json:"replicas,omitempty"`
	Sharding  exec.Sharding `json:"sharding,omitempty"`
	Recompute string        `json:"recompute"`
	// Beside says that checkpoints are copied beside the steps.
	Beside bool `json:"checkpoints_beside"`
	// DataWorkers is [Job.DataWorkers], Best [Job.Best], whose metric a probe looks for.
	DataWorkers int    `json:"data_workers,omitempty"`
	Best        string `json:"best,omitempty"`

	Devices []wishedDevice `json:"devices"`
	// Hosts is how many the gang has, 0 without one, and EveryHost [Job.EveryHost].
	Hosts     int  `json:"hosts,omitempty"`
	EveryHost bool `json:"every_host,omitempty"`
}

// wishedDevice is a device as far as a plan depends on it: not on which of several that are alike it is.
type wishedDevice struct {
	Kind    string         `json:"kind"`
	Class   string         `json:"class,omitempty"`
	Index   int            `json:"index,omitempty"`
	Threads int            `json:"threads,omitempty"`
	Memory  quantity.Bytes `json:"memory,omitempty"` // as it was asked for; 0 is no bound
}

// wishesOf are those of a normalized job, whose CUDA devices were looked at.
func wishesOf(job Job, devices deviceSet) wishes {
	w := wishes{
		Executor: job.Executor.Name(), Partitions: job.Partitions, Batch: job.Batch, MicroBatches: job.MicroBatches,
		Schedule: job.Schedule, Precision: job.Precision, Compile: job.Compile, Optimizer: job.Optimizer,
		Clipped: job.ClipNorm > 0, Recompute: job.Recompute, Beside: job.CheckpointEvery >= 0, DataWorkers: job.DataWorkers,
		Best: job.Best, Replicas: job.Replicas, Sharding: job.Sharding, Hosts: len(job.Hosts), EveryHost: job.EveryHost,
	}
	if job.Replicas == 1 {
		w.Replicas = 0
	}
	if !job.sharded() && w.Replicas == 0 { // of one, nothing is divided whatever the word
		w.Sharding = ""
	}
	for i, d := range devices.all {
		one := wishedDevice{Kind: exec.CPU, Threads: d.Threads}
		if d.Kind == exec.CUDA {
			one = wishedDevice{Kind: d.Kind, Class: d.Class, Index: d.Index}
		}
		if i < len(job.Devices) {
			one.Memory = job.Devices[i].Memory
		}
		w.Devices = append(w.Devices, one)
	}
	return w
}

// differ names what two wishes differ in, in the words of a checkpoint.
func (w wishes) differ(other wishes) (names []string) {
	fields := func(w wishes) (found map[string]json.RawMessage) {
		text, err := json.Marshal(w)
		if err == nil {
			err = json.Unmarshal(text, &found)
		}
		if err != nil { // numbers that JSON has not, which no job has
			return nil
		}
		return found
	}
	mine, others := fields(w), fields(other)
	for name := range others {
		if _, both := mine[name]; !both {
			names = append(names, name)
		}
	}
	for name, value := range mine {
		if !bytes.Equal(value, others[name]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// kept is the plan as checkpoints keep it; nil where it has numbers that JSON has not.
func (p planned) kept() json.RawMessage {
	if len(p.devices.all) == 0 {
		return nil
	}
	k := keptPlan{
		Wishes: p.wishes, Training: p.training, Dataset: p.dataset, CheckpointSeconds: p.checkpoint.Seconds(),
		DataWorkers: p.layout.DataWorkers,
	}
	among := p.devices.of(len(p.layout.Parts))
	if at := wayOf(p.ways, max(p.layout.Replicas, 1), len(p.training.Hosts)); at >= 0 {
		among = p.ways[at].groups[0].of(len(p.layout.Parts))
	}
	for _, one := range p.layout.Parts {
		k.Parts = append(k.Parts, keptPart{
			Ops:    one.Ops,
			Device: slices.IndexFunc(among, func(d exec.Device) bool { return d.ID == one.Device.ID }),
		})
	}
	text, err := json.Marshal(k)
	if err != nil {
		return nil
	}
	return text
}

// reused returns the plan that a checkpoint keeps, where the same is wanted on the same devices. The error says why it
// cannot be used.
func reused(job Job, devices deviceSet, from exec.Checkpoint) (planned, error) {
	var k keptPlan
	switch {
	case len(from.Meta.Plan) == 0:
		return planned{}, errors.New("the checkpoint keeps none")
	case json.Unmarshal(from.Meta.Plan, &k) != nil:
		return planned{}, errors.New("that of the checkpoint cannot be read")
	}
	wanted := wishesOf(job, devices)
	if names := wanted.differ(k.Wishes); len(names) > 0 {
		return planned{}, fmt.Errorf("that of the checkpoint was made for other %s", strings.Join(names, ", "))
	}
	ways, err := job.ways(devices)
	if err != nil {
		return planned{}, err
	}
	t, count := k.Training, len(k.Parts)
	at := wayOf(ways, max(t.Replicas, 1), len(t.Hosts))
	if t.Model != from.Meta.Model || t.Batch != job.Batch || t.MicroBatches < 1 || t.MicroBatches > t.Batch ||
		at < 0 || count < 1 || count > len(ways[at].groups[0].all) || count != len(t.Parts) ||
		job.Partitions > 0 && count != job.Partitions ||
		!(k.CheckpointSeconds >= 0) || k.Dataset < 0 || k.DataWorkers < 0 || k.DataWorkers > MostDataWorkers {
		return planned{}, errors.New("that of the checkpoint contradicts itself")
	}
	p := planned{
		training: t, dataset: k.Dataset, checkpoint: seconds(k.CheckpointSeconds), wishes: wanted, devices: devices,
		reused: true, layout: job.layout(t.MicroBatches, k.DataWorkers), ways: ways,
	}
	p.training.Parts = slices.Clone(t.Parts)
	among, taken := ways[at].groups[0].of(count), map[int]bool{}
	for i, one := range k.Parts {
		if one.Device < 0 || one.Device >= count || taken[one.Device] {
			return planned{}, errors.New("that of the checkpoint contradicts itself")
		}
		taken[one.Device] = true
		device := among[one.Device]
		if device.Kind == exec.CUDA && device.Memory > 0 && t.Parts[i].PredictedPeakBytes > device.Memory {
			return planned{}, fmt.Errorf("%s has %v left, and its part takes %v", device.ID, device.Memory,
				t.Parts[i].PredictedPeakBytes)
		}
		p.training.Parts[i].Device = device.ID
		p.layout.Parts = append(p.layout.Parts, exec.Part{
			Ops: one.Ops, Device: device, InFlight: inFlight(job.Schedule, i, count, t.MicroBatches),
			Recompute: t.Parts[i].Recompute,
		})
	}
	if ways[at].replicas() > 1 {
		p.layout = replicated(p.layout, job, ways[at], exec.Sharding(t.Sharding))
	}
	p.training.Hosts = job.ranksOn(p.layout)
	return p, nil
}

// again loads the plan that a checkpoint keeps; false where another one has to be made, and the log says why.
func (t *trainer) again(ctx, life context.Context, devices deviceSet, from exec.Checkpoint) bool {
	made, err := reused(t.job, devices, from)
	if err == nil {
		t.pipeline, err = t.job.Executor.Load(life, made.layout)
	}
	if err != nil {
		if ctx.Err() == nil {
			t.job.Logger.InfoContext(ctx, "the plan is made anew", "checkpoint", from.Directory, "reason", err)
		}
		return false
	}
	t.job.Logger.InfoContext(ctx, "the plan of the checkpoint is used again", "checkpoint", from.Directory, "replicas",
		max(made.layout.Replicas, 1), "parts", len(made.layout.Parts), "micro_batches", made.layout.MicroBatches)
	t.planned = made
	return true
}
