package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/plan"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/training"
)

// trainFlags are the flags of `train`.
type trainFlags struct {
	data, devices, resume, out string
	validation                 string
	evaluateEvery              int64
	best, result               string
	patience                   int
	minDelta                   float64
	sharedOut                  bool
	here, dataInPlace, json    bool
	partitions, microBatches   int
	replicas                   int
	hosts                      int // 0 is one, autoHosts as many as have room
	shard                      string
	collectiveTimeout          time.Duration
	dataWorkers                int
	dataTimeout                time.Duration
	batch, epochs              int
	steps                      int64
	schedule, precision        string
	compile                    bool
	recompute                  string
	optimizer                  string
	learningRate, weightDecay  float64
	momentum, clipNorm         float64
	seed                       uint64
	checkpointEvery            time.Duration
	// followed and leave are for a command that this one starts as the program of a run: how its caller shows what it
	// prints, and where it leaves its last checkpoint when it is stopped.
	followed, leave string

	command program.Flags
	stack   flag.Stack
	// how are the flags that say how to train, and nothing of where.
	how *pflag.FlagSet
}

func (f *trainFlags) add(flags *pflag.FlagSet) {
	f.schedule, f.precision, f.recompute = training.OneForwardOneBackward, string(exec.Float32), training.RecomputeAuto
	f.result = training.ResultLast
	f.how = pflag.NewFlagSet("how", pflag.ContinueOnError)
	f.how.Var(flag.Automatic{Value: &f.partitions}, "partitions",
		"into how many parts the model is split, one on each device (default auto: by the predicted time of a step)")
	f.how.Var(flag.Automatic{Value: &f.replicas}, "replicas",
		"how many copies of the parts train together, each on its share of the batch; PyTorch 2.4 or later (default auto: "+
			"by the predicted time of a step, and one where a model has batch normalization)")
	f.how.Var(hostsFlag{&f.hosts}, "hosts",
		"on how many hosts of the pool its ranks run, each of which gives it as much; auto is as many as have room, where "+
			"that is faster; PyTorch 2.4 or later (default 1)")
	f.how.Var(flag.Choice{Value: &f.shard, Name: "WHAT", Of: []string{
		string(exec.ShardNone), string(exec.ShardOptimizer), string(exec.ShardGradients), string(exec.ShardParameters),
	}}, "shard", "WHAT the replicas divide instead of each having all of it: none; optimizer, which is its state "+
		"(ZeRO-1); gradients, too (ZeRO-2); or parameters, too (ZeRO-3) (default none, unless memory would not do)")
	f.how.Var(flag.Span{Value: &f.collectiveTimeout}, "collective-timeout",
		"how long a replica or part waits for the others before the attempt fails (default 10m)")
	f.how.Var(flag.Large{Value: &f.steps}, "steps", "how many steps to train (default: one epoch)")
	f.how.Var(flag.Count{Value: &f.epochs, Least: 1}, "epochs", "how many passes over the data to train (default 1)")
	f.how.Var(flag.Count{Value: &f.batch, Least: 1}, "batch", "samples of a step (default 64)")
	f.how.Var(flag.Automatic{Value: &f.microBatches}, "micro-batches",
		"into how many parts a batch is cut, whose gradients are added up before the step: with one part this is gradient "+
			"accumulation (default auto)")
	f.how.Var(flag.Choice{Value: &f.schedule, Of: []string{training.OneForwardOneBackward, training.GPipe}}, "schedule",
		"the order of forward and backward passes of the parts")
	f.how.Var(flag.Choice{Value: &f.optimizer, Of: []string{exec.SGD, exec.Momentum, exec.Adam, exec.AdamW}}, "optimizer",
		"what updates the parameters (default the model's own, else Adam at 0.001)")
	f.how.Var(flag.Weight{Value: &f.learningRate, Least: 0}, "learning-rate",
		"that of --optimizer (default 0.001 for adam and adamw, 0.01 for the others)")
	f.how.Var(flag.Weight{Value: &f.weightDecay, Least: 0}, "weight-decay",
		"that of --optimizer (default 0, and 0.01 for adamw)")
	f.how.Var(flag.Weight{Value: &f.momentum, Least: 0}, "momentum", "that of --optimizer momentum (default 0.9)")
	f.how.Var(flag.Weight{Value: &f.clipNorm, Least: 0}, "clip-norm",
		"the most that the norm of all gradients together may be (default no bound)")
	f.how.Var(flag.Seed{Value: &f.seed}, "seed", "makes parameters, the order of samples and dropout masks (default 0)")
	f.how.Var(flag.Choice{Value: &f.precision, Of: []string{
		string(exec.Float32), string(exec.TF32), string(exec.BFloat16), string(exec.Float16),
	}}, "precision",
		"the type of products; parameters stay float32. tf32 is for GPUs, float16 scales the loss")
	f.how.BoolVar(&f.compile, "compile", false,
		"compile the parts by torch.compile (torch 2.4 or later; on CPUs it needs a C++ compiler)")
	f.how.Var(flag.Choice{Value: &f.recompute, Of: []string{
		training.RecomputeAuto, training.RecomputeNever,
		training.RecomputeAlways,
	}}, "recompute",
		"when activations are computed again instead of kept; auto is where memory would not do")
	f.how.Var(flag.Span{Value: &f.checkpointEvery}, "checkpoint-every",
		"the time between checkpoints (default as often as is worth it by what one takes and how often attempts are "+
			"lost, 5s to 10m)")
	f.how.Var(flag.Large{Value: &f.evaluateEvery}, "eval-every",
		"after how many steps the validation data are looked at (default once an epoch; always at the end)")
	f.how.Var(metric{&f.best}, "best",
		"NAME, min:NAME or max:NAME of the metric by which the best step is found; its model is kept beside the last "+
			"(default min:"+training.ValidationLoss+")")
	f.how.Var(flag.Choice{Value: &f.result, Of: []string{training.ResultLast, training.ResultBest}}, "result",
		"the step whose parameters the trained model has")
	f.how.Var(flag.Count{Value: &f.patience, Least: 1}, "patience",
		"after how many looks at the validation data without a better one the training ends (default never)")
	f.how.Var(flag.Weight{Value: &f.minDelta, Least: 0}, "min-delta",
		"by how much a look must be better to count for --patience (default 0)")
	f.how.Var(dataWorkers{&f.dataWorkers}, "data-workers",
		"how many processes fetch the next batches while a step computes (default auto: by how long a batch takes and "+
			"what cores are left)")
	f.how.Var(flag.Span{Value: &f.dataTimeout}, "data-timeout",
		"how long a batch may be waited for (default 10m)")
	flags.AddFlagSet(f.how)
	flags.StringVar(&f.data, "data", "", "`FILE|DIR` of the data, given to the model's data()")
	flags.StringVar(&f.validation, "validation-data", "",
		"`FILE|DIR` of validation data, given to the model's validation() or read as --data is (default what validation() "+
			"makes of --data)")
	flags.BoolVar(&f.dataInPlace, "data-in-place", false,
		"read the data where it is, at a path that every host has, instead of sending it along")
	flags.StringVar(&f.devices, "devices", "", "`FILE` of the devices that may be used, as `spillway plan` reads it "+
		"(default what the attempt is given: its GPUs, without any the CPUs)")
	flags.StringVar(&f.resume, "resume", "", "`DIR` of a checkpoint to go on from; the split may be another")
	flags.Var(flag.Destination{Value: &f.out}, "out",
		"`DIR` for the trained model and the last checkpoint (default MODEL-trained)")
	flag.AddSharedOut(flags, &f.sharedOut, "--out")
	flags.BoolVar(&f.here, "here", false, "train in this process, without an engine: implied in a stage of a chain")
	flags.BoolVar(&f.json, "json", false, "write the plan, the progress and the result to standard output as JSON, one "+
		"object a line")
	flags.Var(flag.Choice{Value: &f.followed, Of: []string{followedByTerminal, followedByLines, followedByJSON}},
		"followed", "how a caller shows the output")
	flags.StringVar(&f.leave, "leave", "", "`DIR` that gets the last checkpoint of a stopped training")
	for _, internal := range []string{"followed", "leave"} {
		flags.Lookup(internal).Hidden = true
	}
	f.addCommand(flags)
	f.stack.Add(flags)
}

// autoHosts is as many hosts as have room.
const autoHosts = -1

// hostsFlag is a flag that takes a number of hosts, or auto.
type hostsFlag struct{ value *int }

// String returns the number; empty for one.
func (h hostsFlag) String() string {
	switch {
	case h.value == nil || *h.value == 0:
		return ""
	case *h.value == autoHosts:
		return "auto"
	default:
		return strconv.Itoa(*h.value)
	}
}

// Type is the placeholder in the usage.
func (hostsFlag) Type() string { return "auto|N" }

// Set reads "2" or "auto".
func (h hostsFlag) Set(text string) error {
	switch value, err := strconv.Atoi(text); {
	case text == "auto":
		*h.value = autoHosts
	case err != nil || value < 1 || value > gang.MostHosts:
		return &fault.UsageError{
			Problem: "it is neither auto nor a number of hosts",
			Hint:    fmt.Sprintf("write auto, or a number from 1 to %d", gang.MostHosts),
		}
	default:
		*h.value = value
	}
	return nil
}

// gang is on how many hosts it trains, at least and at most.
func (f *trainFlags) gang() (least, most int) {
	if f.hosts == autoHosts {
		return 1, gang.MostHosts
	}
	return max(f.hosts, 1), max(f.hosts, 1)
}

// dataWorkers is a flag that takes a number of processes from 0, or auto. Its value is that of [training.Job].
type dataWorkers struct{ value *int }

// String returns the number; empty for auto.
func (d dataWorkers) String() string {
	switch {
	case d.value == nil || *d.value == 0:
		return ""
	case *d.value == training.NoDataWorkers:
		return "0"
	default:
		return strconv.Itoa(*d.value)
	}
}

// Type is the placeholder in the usage.
func (dataWorkers) Type() string { return "auto|N" }

// Set reads "2", "0" or "auto".
func (d dataWorkers) Set(text string) error {
	switch value, err := strconv.Atoi(text); {
	case text == "auto":
		*d.value = 0
	case err != nil || value < 0 || value > training.MostDataWorkers:
		return &fault.UsageError{
			Problem: "it is neither auto nor a whole number in range",
			Hint: fmt.Sprintf("write auto, or a number from 0 to %d; with 0 no process fetches ahead",
				training.MostDataWorkers),
		}
	case value == 0:
		*d.value = training.NoDataWorkers
	default:
		*d.value = value
	}
	return nil
}

// trainAttempts is how often a training may fail: an attempt goes on from the checkpoint of the one before.
const trainAttempts = 5

// addCommand adds those flags of a command that mean something here.
func (f *trainFlags) addCommand(flags *pflag.FlagSet) {
	c := &f.command
	c.Attempts, c.NoFetch = trainAttempts, true
	c.Set = pflag.NewFlagSet("command", pflag.ContinueOnError)
	c.Set.StringVar(&c.Name, "name", "", "`NAME` under which what was learnt of the training is kept (default that "+
		"of the model)")
	c.Set.StringVar(&c.Code, "code", "", "`DIR` that is sent along, with the file of the model in it (default the "+
		"directory of that file)")
	c.Set.StringArrayVar(&c.Environment, "env", nil,
		"`NAME[=VALUE]` of an environment variable, without a value that of this shell; it is kept with the run: no secrets")
	c.Set.StringVar(&c.Requirements, "requirements", "", "`FILE` of Python requirements, installed once for each content")
	c.Set.Var(flag.Cores{Value: &c.CPU}, "cpu", "cores that an attempt is given until its use is known (default one "+
		"for each part)")
	c.Set.Var(flag.Memory{Value: &c.Memory}, "memory",
		"memory that an attempt is given until its use is known, such as 2GiB")
	c.AddGPU()
	c.Set.Var(flag.Span{Value: &c.Timeout}, "timeout", "how long one attempt may take (default no limit)")
	c.Set.Var(flag.Count{Value: &c.Attempts, Least: 1}, "attempts",
		"how often the training may fail; each attempt goes on from the last checkpoint")
	flags.AddFlagSet(c.Set)
}

// modelFile is a reference to a model, taken apart.
type modelFile struct {
	// path is the file's, function the name of the function.
	path, function string
}

// readModel splits FILE.py:FUNCTION and refuses what is none.
func readModel(reference string) (modelFile, error) {
	const hint = "give FILE.py:FUNCTION, where the function returns a torch.nn.Module"
	at := strings.LastIndexByte(reference, ':')
	if !plan.ModelReference.MatchString(reference) {
		if strings.HasSuffix(reference, ".py") {
			return modelFile{}, &fault.UsageError{
				Problem: reference + " names no function",
				Hint:    "write " + reference + ":build, if build is what returns the model",
			}
		}
		return modelFile{}, &fault.UsageError{Problem: fmt.Sprintf("%q is not a model", reference), Hint: hint}
	}
	m := modelFile{path: reference[:at], function: reference[at+1:]}
	info, err := os.Stat(m.path)
	switch {
	case err != nil:
		return m, &fault.UsageError{Problem: fmt.Sprintf("%s: %v", m.path, fault.WithoutPath(err)), Hint: hint}
	case !info.Mode().IsRegular():
		return m, &fault.UsageError{Problem: m.path + " is no file", Hint: hint}
	}
	return m, nil
}

func (m modelFile) stem() string { return strings.TrimSuffix(filepath.Base(m.path), ".py") }

// commonStems say nothing about a model: its directory does.
var commonStems = []string{"model", "models", "main", "train", "net", "network"}

// name is that under which trainings of the model are known.
func (m modelFile) name() string {
	stem := m.stem()
	if slices.Contains(commonStems, stem) {
		if absolute, err := filepath.Abs(m.path); err == nil {
			stem = filepath.Base(filepath.Dir(absolute))
		}
	}
	return flag.ValidName("train-" + stem)
}

// metric is a flag that takes a goal, as training.ParseGoal reads it.
type metric struct{ value *string }

// String returns the goal; empty for none.
func (m metric) String() string {
	if m.value == nil {
		return ""
	}
	return *m.value
}

// Type is the placeholder in the usage.
func (metric) Type() string { return "METRIC" }

// Set reads a goal.
func (m metric) Set(text string) error {
	goal, err := training.ParseGoal(text)
	if err != nil {
		return &fault.UsageError{Problem: "it is no metric", Hint: "write NAME, min:NAME or max:NAME, as max:accuracy"}
	}
	*m.value = goal.String()
	return nil
}

// check refuses flags that contradict each other and files that are not there.
func (f *trainFlags) check() error {
	if err := flag.Exclusive([]string{"--steps", "--epochs"}, f.steps > 0, f.epochs > 0); err != nil {
		return err
	}
	if err := f.checkOptimizer(); err != nil {
		return err
	}
	if batch := f.batch; f.microBatches > max(batch, 1) && batch > 0 ||
		batch == 0 && f.microBatches > training.DefaultBatch {
		return &fault.UsageError{
			Problem: fmt.Sprintf("a batch of %d samples cannot be cut into %d micro-batches", orUsual(batch), f.microBatches),
			Hint:    "give at most one micro-batch for each sample, or a larger --batch",
		}
	}
	replicas := training.Job{
		Compile: f.compile,
		Batch:   f.batch, MicroBatches: f.microBatches, Partitions: f.partitions, Replicas: f.wantedReplicas(),
		Sharding: exec.Sharding(f.shard),
	}
	if err := replicas.CheckReplicas(); err != nil {
		problem, hint, _ := strings.Cut(err.Error(), "; ")
		return &fault.UsageError{Problem: problem, Hint: hint}
	}
	if f.hosts > 1 && f.replicas > 1 && f.replicas%f.hosts != 0 {
		return &fault.UsageError{
			Problem: fmt.Sprintf("%d replicas cannot be divided among %d hosts", f.replicas, f.hosts),
			Hint:    "give as many to each, or leave --replicas out",
		}
	}
	if f.hosts > 1 && f.replicas == 1 && f.validation != "" { // the hosts would refuse it once all of them have room
		return &fault.UsageError{
			Problem: "--validation-data with --replicas 1 on several hosts: the parts of one replica are not evaluated there",
			Hint:    "leave --replicas or --validation-data out, or give each host replicas of its own",
		}
	}
	if f.hosts != 0 && f.hosts != 1 && f.compile {
		return &fault.UsageError{
			Problem: "--compile with --hosts: what is compiled is trained on one host", Hint: "leave one of both out",
		}
	}
	if err := f.checkPaths(); err != nil {
		return err
	}
	return f.checkTogether()
}

// checkOptimizer refuses what belongs to another optimizer than the one that is asked for.
func (f *trainFlags) checkOptimizer() error {
	if f.optimizer == "" {
		for _, name := range []string{"learning-rate", "weight-decay", "momentum"} {
			if f.how.Changed(name) {
				return &fault.UsageError{
					Problem: "--" + name + " is for --optimizer",
					Hint:    "say which: --optimizer adam, or set it in the model's optimizer()",
				}
			}
		}
	}
	if f.how.Changed("momentum") && f.optimizer != exec.Momentum {
		return &fault.UsageError{
			Problem: "--momentum is for --optimizer momentum",
			Hint:    "write --optimizer momentum, or leave it out",
		}
	}
	if f.momentum >= 1 {
		return &fault.UsageError{
			Problem: "--momentum " + strconv.FormatFloat(f.momentum, 'g', -1, 64) + " is not below 1",
			Hint:    "write a number from 0 to 1, such as 0.9",
		}
	}
	return nil
}

// checkPaths refuses files that are not there.
func (f *trainFlags) checkPaths() error {
	for _, one := range []struct{ flag, path string }{
		{"--data", f.data},
		{"--validation-data", f.validation},
		{"--devices", f.devices},
		{"--resume", f.resume},
	} {
		if one.path == "" {
			continue
		}
		info, err := os.Stat(one.path)
		if err != nil {
			return &fault.UsageError{
				Problem: fmt.Sprintf("%s %s: %v", one.flag, one.path, fault.WithoutPath(err)),
				Hint:    "give one that is there",
			}
		}
		if one.flag == "--resume" && !info.IsDir() {
			return &fault.UsageError{
				Problem: "--resume " + one.path + ": it is no directory",
				Hint:    "give the directory of a checkpoint: the result directory of a training has one",
			}
		}
		if one.flag == "--resume" {
			if err := checkCheckpoint(one.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTogether refuses flags without those that they are for.
func (f *trainFlags) checkTogether() error {
	if f.minDelta > 0 && f.patience == 0 {
		return &fault.UsageError{Problem: "--min-delta is for --patience", Hint: "say after how many looks: --patience 3"}
	}
	if f.dataInPlace && f.data == "" && f.validation == "" {
		return &fault.UsageError{Problem: "--data-in-place is for --data", Hint: "say which data"}
	}
	return nil
}

func orUsual(batch int) int {
	if batch == 0 {
		return training.DefaultBatch
	}
	return batch
}

// checkCheckpoint refuses a directory that is no checkpoint; what is wrong in one is found when it is read.
func checkCheckpoint(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, exec.Manifest)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	hint := "give the directory of a checkpoint: the result directory of a training has one"
	for _, among := range []string{filepath.Join(dir, training.Checkpoints), dir} {
		newest := training.NewestCheckpoint(among)
		if _, err := os.Stat(filepath.Join(newest, exec.Manifest)); newest != "" && err == nil {
			hint = "the newest one in it is " + newest
			break
		}
	}
	return &fault.UsageError{
		Problem: fmt.Sprintf("--resume %s: it is no checkpoint, as it has no %s", dir, exec.Manifest), Hint: hint,
	}
}

// checkOut refuses a result directory with files in it, so that no trained model is lost. A training that goes on may
// add to its own.
func checkOut(dir string, resumed, shared bool) error {
	if err := safefile.Check(dir, shared); err != nil {
		return flag.RefusedOut("--out", dir, err)
	}
	entries, err := os.ReadDir(dir)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return &fault.UsageError{
			Problem: fmt.Sprintf("--out %s: %v", dir, fault.WithoutPath(err)),
			Hint:    "give a directory that can be written, or is not there yet",
		}
	case len(entries) > 0 && !resumed:
		return &fault.UsageError{
			Problem: fmt.Sprintf("the result directory %s is not empty: it has %s", dir, entries[0].Name()),
			Hint: "give another with --out DIR, or go on from a checkpoint in it with --resume " +
				filepath.Join(dir, training.Checkpoints, "step-N"),
		}
	}
	return nil
}

// wantedReplicas are those of a [training.Job].
func (f *trainFlags) wantedReplicas() int {
	if f.replicas == 0 {
		return training.AutoReplicas
	}
	return f.replicas
}

// complete sets what the flags say of how to train.
func (f *trainFlags) complete(job *training.Job) {
	job.Partitions, job.Schedule, job.Batch, job.MicroBatches = f.partitions, f.schedule, f.batch, f.microBatches
	job.Steps, job.Epochs, job.Seed, job.CheckpointEvery = f.steps, f.epochs, f.seed, f.checkpointEvery
	job.EvaluateEvery, job.Best, job.Result = f.evaluateEvery, f.best, f.result
	job.Patience, job.MinDelta = f.patience, f.minDelta
	job.DataWorkers, job.DataTimeout = f.dataWorkers, f.dataTimeout
	job.Precision, job.ClipNorm, job.Recompute = exec.Precision(f.precision), f.clipNorm, f.recompute
	job.Replicas, job.Sharding, job.CollectiveTimeout = f.wantedReplicas(), exec.Sharding(f.shard), f.collectiveTimeout
	job.Compile = f.compile
	job.Optimizer = exec.Optimizer{
		Kind: f.optimizer, LearningRate: f.learningRate, Momentum: f.momentum,
		WeightDecay: f.weightDecay,
	}
}
