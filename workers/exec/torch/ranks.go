package torch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// usualTimeout is how long a rank waits for others before it takes them for lost.
	usualTimeout = 10 * time.Minute
	// lateAfter is how long ranks may be behind the first that gave others up, beside twice the longest step so far.
	lateAfter = 2 * time.Second
	// loopback is where the ranks of one host meet.
	loopback = "127.0.0.1"
)

// ranks is a loaded layout of replicas: a process for each part of each replica, which torch.distributed joins. It does
// whole steps.
type ranks struct {
	all     []*rank // replica by replica
	parts   int     // of each replica
	data    exec.Data
	clip    float64
	longest time.Duration // of the steps so far
	skipped int           // steps since the last that was made
	broken  error
}

var _ interface {
	exec.Pipeline
	exec.Stepper
	exec.Evaluator
} = (*ranks)(nil)

// rank is a part of a replica.
type rank struct {
	*stage
	of      *ranks
	replica int
	host    int // of the gang
}

// nameOf is what a device is called in errors, with its host where that is another.
func (e *Executor) nameOf(device exec.Device) string {
	name := cmp.Or(device.ID, deviceName(device))
	if device.Host > 0 && device.Host < len(e.hosts) {
		name += " of " + e.hosts[device.Host].Name
	}
	return name
}

// String names it in errors.
func (r *rank) String() string {
	return fmt.Sprintf("replica %d, part %d on %s", r.replica, r.number, r.name)
}

// Distributes refuses a PyTorch that cannot train replicas. What is new enough for them is not loaded for that.
func (e *Executor) Distributes(ctx context.Context) error {
	pythons := []string{usualPython, systemPython}
	if e.options.Python != "" {
		pythons = []string{e.options.Python}
	}
	if found, err := installed(ctx, pythons, false); err == nil && found.Replicas && !found.Old {
		return nil
	}
	r, err := e.start(ctx, exec.Device{}, nil)
	if err == nil {
		defer r.close()
		err = r.call(ctx, "distributed", map[string]any{}, nil)
	}
	if err != nil {
		return fmt.Errorf("train replicas of %s: %w", e.options.Model, err)
	}
	return nil
}

// loadRanks starts a process for each part of each replica, has them load one after the other, and joins them.
func (e *Executor) loadRanks(ctx context.Context, layout exec.Layout) (_ *ranks, err error) {
	if err := checkReplicas(layout); err != nil {
		return nil, err
	}
	count := max(layout.Replicas, 1)
	shared, err := makeArena(len(layout.Parts))
	if err != nil {
		return nil, err
	}
	defer func() { _ = shared.file.Close() }() // the processes have it open
	p := &ranks{parts: len(layout.Parts), clip: layout.Collective.ClipNorm}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	var starting sync.WaitGroup
	errs := make([]error, count*p.parts)
	for replica := range count {
		for i, part := range layout.Parts {
			device := part.On(replica)
			r := &rank{of: p, replica: replica, host: device.Host, stage: &stage{
				number: i, name: e.nameOf(device), timed: layout.Timed,
			}}
			at := len(p.all)
			p.all = append(p.all, r)
			starting.Go(func() { r.runner, errs[at] = e.start(ctx, device, shared) })
		}
	}
	starting.Wait()
	for i, err := range errs {
		if err != nil { // the others say the same, or were ended
			return nil, fmt.Errorf("%v: %w", p.all[i], err)
		}
	}
	if err := e.loadEach(ctx, layout, p); err != nil {
		return nil, err
	}
	return p, e.join(ctx, p, layout)
}

// sharded reports whether replicas divide something.
func sharded(layout exec.Layout) bool {
	return layout.Sharding != "" && layout.Sharding != exec.ShardNone
}

// checkReplicas refuses layouts whose replicas torch cannot train together.
func checkReplicas(layout exec.Layout) error {
	if err := checkLayout(layout); err != nil {
		return err
	}
	count, parts := max(layout.Replicas, 1), len(layout.Parts)
	switch share := layout.Batch / count; {
	case layout.Batch < count*layout.MicroBatches:
		return fmt.Errorf("a batch of %d samples for %d replicas with %d micro-batches each; want a sample for each at least",
			layout.Batch, count, layout.MicroBatches)
	case parts > 1 && (layout.Batch%count != 0 || share%layout.MicroBatches != 0):
		return fmt.Errorf("a batch of %d samples for %d replicas in %d parts, with %d micro-batches each: parts of replicas "+
			"pass micro-batches of one size; choose a batch that %d divides, or one part", layout.Batch, count, parts,
			layout.MicroBatches, count*layout.MicroBatches)
	}
	if layout.Compile && sharded(layout) {
		return fmt.Errorf("replicas that divide what the %s take are not compiled; leave one of both out", layout.Sharding)
	}
	for i, part := range layout.Parts {
		if part.Replicas != nil && len(part.Replicas) != count-1 {
			return fmt.Errorf("part %d: %d devices of further replicas; want %d, or none where all are on its own", i,
				len(part.Replicas), count-1)
		}
		for replica := range count {
			if err := errors.Join(checkDevice(part.On(replica)), checkPrecision(layout.Precision, part.On(replica))); err !=
				nil {
				return fmt.Errorf("replica %d, part %d: %w", replica, i, err)
			}
		}
	}
	return nil
}

// loadEach loads the ranks in order. The very first makes the whole model, and lends the others what they hold.
func (e *Executor) loadEach(ctx context.Context, layout exec.Layout, p *ranks) error {
	file, function, err := e.options.locate()
	if err != nil {
		return err
	}
	ops := make([][]string, p.parts)
	for i, part := range layout.Parts {
		ops[i] = part.Ops
	}
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return fmt.Errorf("find the cores of processes that fetch data: %w", err)
	}
	var first loadedRank
	codes := make([]string, p.parts)
	for at, r := range p.all {
		part := layout.Parts[r.number]
		device := part.On(r.replica)
		lent, err := p.lend(ctx, at)
		if err != nil {
			return err
		}
		var sizes []int
		if r.replica == 0 && first.Validation != nil { // the others do not evaluate
			sizes = first.Validation.Sizes
		}
		var loaded loadedRank
		err = r.runner.call(ctx, "load_rank", map[string]any{
			"validation": e.options.Validation, "validation_sizes": sizes,
			"validates": r.replica == 0 && !sharded(layout),
			"judged":    r.replica > 0 && first.Validation != nil,
			"steps":     layout.Steps, "epochs": layout.Epochs, "steps_per_epoch": first.StepsPerEpoch,
			"file": file, "function": function, "data": e.options.Data, "seed": layout.Seed, "parts": ops,
			"index": r.number, "replica": r.replica, "replicas": max(layout.Replicas, 1),
			"sharding": cmp.Or(layout.Sharding, exec.ShardNone),
			"schedule": cmp.Or(layout.Collective.Schedule, exec.OneForwardOneBackward),
			"example":  first.Example, "lent": lent, "batch": layout.Batch, "micro_batches": layout.MicroBatches,
			"in_flight": part.InFlight, "recompute": part.Recompute,
			"precision": cmp.Or(layout.Precision, exec.Float32), "optimizer": layout.Optimizer, "compile": layout.Compile,
			"device": deviceName(device), "threads": device.Threads, "memory": device.Memory,
			"data_workers": layout.DataWorkers, "data_cpus": coresForData(allowed, []exec.Part{{Device: device}}),
			"data_timeout": layout.DataTimeout.Seconds(),
		}, &loaded)
		if err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
		if at == 0 {
			first = loaded
		}
		codes[r.number] = cmp.Or(codes[r.number], loaded.Code)
		if loaded.Model != first.Model || loaded.File != first.File || loaded.Code != codes[r.number] {
			return fmt.Errorf("%v: %w: its model is another one than that of replica 0; let the function build the same model "+
				"each time it is called, and leave the file alone while ranks load", r, exec.ErrRequest)
		}
		r.inFlight = part.InFlight
		if v := loaded.Validation; v != nil && r.replica == 0 && r.host != p.all[0].host {
			return fmt.Errorf("%v: the first replica looks at the validation data, whose parts must be on one host; train its "+
				"parts on one host, or leave the validation data out: %w", r, exec.ErrRequest)
		} else if v != nil {
			r.evaluationReads, r.evaluationReadsBatch = v.Reads, v.ReadsBatch
		}
	}
	p.data = exec.Data{
		Samples: first.Samples, StepsPerEpoch: first.StepsPerEpoch, Model: first.Model, Validates: first.Validation != nil,
	}
	_, err = p.lend(ctx, len(p.all))
	return err
}

// loadedRank is what a rank tells of what it has loaded.
type loadedRank struct {
	// Model is a digest of the parameters, File of the user's file, and Code of the operations of the part.
	Model         string `json:"model"`
	File          string `json:"file"`
	Code          string `json:"code"`
	Example       string `json:"example"`
	Samples       int    `json:"samples"`
	StepsPerEpoch int64  `json:"steps_per_epoch"`
	Validation    *struct {
		Sizes      []int `json:"sizes"`
		Reads      []int `json:"reads"`
		ReadsBatch bool  `json:"reads_batch"`
	} `json:"validation"`
}

// lender is the rank that made the whole model on the host of another, where it can lend what that one holds: the first
// there, where it is a first part. It is that rank itself where it makes the model.
func (p *ranks) lender(at int) *rank {
	own := p.all[at]
	first := p.all[slices.IndexFunc(p.all, func(r *rank) bool { return r.host == own.host })]
	if first.number != 0 {
		return own
	}
	return first
}

// lend has the first rank of a host, which made the whole model, tell another there where the tensors are that it
// holds; after the last rank it lets go what is left.
func (p *ranks) lend(ctx context.Context, at int) (lent message, err error) {
	if at == len(p.all) {
		for i, r := range p.all {
			lends := slices.ContainsFunc(p.all, func(o *rank) bool { return o != r && o.host == r.host })
			if p.lender(i) != r || r.number != 0 || !lends {
				continue
			}
			if err := r.runner.call(ctx, "lend", map[string]any{"part": p.parts}, nil); err != nil {
				return nil, fmt.Errorf("%v: let go of tensors: %w", r, err)
			}
		}
		return nil, nil
	}
	own, from := p.all[at], p.lender(at)
	if from == own {
		return nil, nil
	}
	last := !slices.ContainsFunc(p.all[at+1:], func(r *rank) bool { return r.host == own.host && r.number == own.number })
	request := map[string]any{"part": own.number, "last": last}
	if err := from.runner.call(ctx, "lend", request, &lent); err != nil {
		return nil, fmt.Errorf("%v: hand over tensors: %w", from, err)
	}
	return lent, nil
}

// join has the ranks meet at a store of the first one.
func (e *Executor) join(ctx context.Context, p *ranks, layout exec.Layout) error {
	timeout := cmp.Or(layout.Collective.Timeout, usualTimeout)
	host, network, err := e.meetingOf(layout)
	if err != nil {
		return err
	}
	meet := map[string]any{
		"host": host, "timeout": timeout.Seconds(), "backend": p.backend(layout), "interface": network,
	}
	var port int
	request := map[string]any{"host": host, "timeout": timeout.Seconds()}
	if err := p.all[0].runner.call(ctx, "serve_store", request, &port); err != nil {
		return fmt.Errorf("%v: make the store at which ranks meet: %w", p.all[0], err)
	}
	meet["port"] = port
	began := time.Now()
	err = p.together(ctx, "join", meet, nil)
	p.longest = time.Since(began)
	return err
}

// meetingOf is the address of this host at which the ranks of a layout meet, and the network interface with it; those
// of one host use the loopback one, by which nobody else reaches them.
func (e *Executor) meetingOf(layout exec.Layout) (address, network string, err error) {
	if !isAway(layout) {
		return loopback, "", nil
	}
	address = e.hosts[0].Address
	network, err = interfaceOf(address)
	return address, network, err
}

// backend is that of torch.distributed: NCCL where each rank has a GPU of its own, which it demands, and gloo beside it
// for what ranks tell each other from the host's memory.
func (p *ranks) backend(layout exec.Layout) string {
	seen := map[[2]int]bool{} // by host and index
	for _, r := range p.all {
		device := layout.Parts[r.number].On(r.replica)
		at := [2]int{device.Host, device.Index}
		if device.Kind != exec.CUDA || seen[at] {
			return "gloo"
		}
		seen[at] = true
	}
	return "cpu:gloo,cuda:nccl"
}

// outcome is how a rank has answered.
type outcome struct {
	rank int
	err  error
}

// together has all ranks do a command at once; into, which may be nil, returns where the answer of each belongs. Each
// is told its number. All or none: after an error every rank is ended. The error names the rank that is the cause: the
// one whose model failed or whose process ended, else those that still give no answer when others have given them up.
func (p *ranks) together(ctx context.Context, command string, request map[string]any, into func(i int) any) error {
	outcomes := make(chan outcome, len(p.all))
	for i, r := range p.all {
		own, result := maps.Clone(request), any(nil)
		if own == nil {
			own = map[string]any{}
		}
		if into != nil {
			result = into(i)
		}
		own["rank"] = i
		go func() { outcomes <- outcome{i, r.runner.call(ctx, command, own, result)} }()
	}
	if err := p.await(outcomes); err != nil {
		return p.lost(ctx, fmt.Errorf("%s: %w", command, err))
	}
	return nil
}

// await waits for the outcomes of all ranks, or until it knows why there will not be all.
func (p *ranks) await(outcomes <-chan outcome) error {
	waiting := slices.Clone(p.all) // nil are those that have answered
	var given error                // why a rank gave others up
	var late <-chan time.Time
	for range p.all {
		select {
		case o := <-outcomes:
			waiting[o.rank] = nil
			if o.err == nil {
				continue
			}
			err := fmt.Errorf("%v: %w", p.all[o.rank], o.err)
			if !isCollective(o.err) {
				return err
			}
			if given == nil {
				given = err
				patience := time.NewTimer(lateAfter + 2*p.longest)
				defer patience.Stop()
				late = patience.C
			}
			p.all[o.rank].runner.close() // those that wait for it learn of it at once
		case <-late:
			return missing(waiting, given)
		}
	}
	return given
}

// missing is the error about ranks that give no answer.
func missing(waiting []*rank, given error) error {
	var names []string
	for _, r := range waiting {
		if r != nil {
			names = append(names, r.String())
		}
	}
	return fmt.Errorf("%w: %s; the first that gave up is %w", exec.ErrMissing, strings.Join(names, "; "), given)
}

// lost ends all ranks.
func (p *ranks) lost(ctx context.Context, err error) error {
	_ = p.Close()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	p.broken = err
	return err
}

// isCollective reports whether a rank failed because others did.
func isCollective(err error) bool {
	var model *ModelError
	return errors.As(err, &model) && model.Kind == kindCollective
}

// Stages are the parts of the first replica, then those of the next.
func (p *ranks) Stages() []exec.Stage {
	stages := make([]exec.Stage, len(p.all))
	for i, r := range p.all {
		stages[i] = r
	}
	return stages
}

// Data describes what the first rank reads.
func (p *ranks) Data() exec.Data { return p.data }

// Batch is not for ranks: each gets what it reads.
func (p *ranks) Batch(context.Context, int64) (exec.Batch, error) { return exec.Batch{}, errWhole }

// errWhole is what the methods of single passes return.
var errWhole = errors.New("replicas do whole steps: call Step of the pipeline")

// Step has every replica train on its share of the batch.
func (p *ranks) Step(ctx context.Context, step int64) (exec.StepReport, error) {
	if p.broken != nil {
		return exec.StepReport{}, fmt.Errorf("step %d: %w: %w", step, exec.ErrBroken, p.broken)
	}
	type told struct {
		Loss    number  `json:"loss"`
		Norm    number  `json:"norm"`
		Updated bool    `json:"updated"`
		Skipped bool    `json:"skipped"`
		Samples int     `json:"samples"`
		Seconds float64 `json:"seconds"`
		Waited  float64 `json:"waited"`
		Busy    float64 `json:"busy"`
	}
	answers := make([]told, len(p.all))
	began := time.Now()
	request := map[string]any{"step": step, "clip": p.clip}
	if err := p.together(ctx, "train_step", request, func(i int) any { return &answers[i] }); err != nil {
		return exec.StepReport{}, fmt.Errorf("step %d: %w", step, err)
	}
	took := time.Since(began)
	p.longest = max(p.longest, took)
	report := exec.StepReport{
		Loss: float64(answers[0].Loss), GradientNorm: float64(answers[0].Norm), Duration: took,
		Busy: make([]time.Duration, p.parts),
	}
	for i, a := range answers {
		report.Samples += a.Samples
		report.Data = max(report.Data, seconds(a.Waited))
		report.Busy[i%p.parts] += seconds(a.Busy) / time.Duration(len(p.all)/p.parts)
	}
	report.Duration -= report.Data
	p.skipped++
	if report.Skipped = answers[0].Skipped; !report.Skipped {
		p.skipped = 0
	}
	var diverged *exec.LossError
	switch loss := report.Loss; {
	case math.IsNaN(loss) || math.IsInf(loss, 0):
		diverged = &exec.LossError{Step: step, Loss: loss, Cause: fmt.Errorf("the loss of the batch is %v", loss)}
	case !answers[0].Updated || p.skipped > exec.MostSkipped:
		diverged = &exec.LossError{Step: step, GradientNorm: report.GradientNorm}
	}
	if diverged != nil {
		p.broken = diverged
		return report, fmt.Errorf("step %d: %w", step, diverged)
	}
	return report, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Evaluate has the first replica look at the validation data.
func (p *ranks) Evaluate(ctx context.Context) (exec.Evaluation, error) {
	first := &pipeline{data: p.data}
	for _, r := range p.all[:p.parts] {
		first.stages = append(first.stages, r.stage)
	}
	found, err := first.Evaluate(ctx)
	if err != nil {
		return found, err
	}
	for _, r := range p.all[p.parts:] { // their schedulers go by it, too
		if err := r.call(ctx, "judge", numbers(found), nil); err != nil {
			return exec.Evaluation{}, fmt.Errorf("evaluate the model: %w", err)
		}
	}
	return found, nil
}

// Write makes a state_dict with the names of the unsplit model, and beside it the same in a file .safetensors.
func (p *ranks) Write(ctx context.Context, parts []string, path string) error {
	return (&pipeline{stages: []*stage{p.all[0].stage}}).Write(ctx, parts, path)
}

// Close ends the processes, all at once, and waits until they are gone.
func (p *ranks) Close() error {
	stages := make([]*stage, len(p.all))
	for i, r := range p.all {
		stages[i] = r.stage
	}
	return (&pipeline{stages: stages}).Close()
}

// Forward is not for ranks.
func (r *rank) Forward(context.Context, int64, int, exec.Message, []exec.Message) (exec.Message, error) {
	return nil, errWhole
}

// Recompute is not for ranks.
func (r *rank) Recompute(context.Context, int) error { return errWhole }

// Backward is not for ranks.
func (r *rank) Backward(context.Context, int, []exec.Message) ([]exec.Message, error) {
	return nil, errWhole
}

// GradientSquares is not for ranks.
func (r *rank) GradientSquares(context.Context) (float64, error) { return 0, errWhole }

// Step is not for ranks.
func (r *rank) Step(context.Context, float64) (float64, error) { return 0, errWhole }

// Export writes what this rank has of a checkpoint. That of the first rank, which comes first, has all of them copy it:
// they gather together what is sharded.
func (r *rank) Export(ctx context.Context, path string) (func() error, error) {
	if r == r.of.all[0] {
		if err := r.of.together(ctx, "capture", nil, nil); err != nil {
			return nil, err
		}
	}
	return r.stage.Export(ctx, path)
}
