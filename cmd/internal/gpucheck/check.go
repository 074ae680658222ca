package gpucheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	executor "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Config says what to check, and how.
type Config struct {
	// Version is what is checked, for the report.
	Version string
	// Bundle is the directory with the programs: this one as a build that asks the driver of GPUs (Inventory), the test of
	// the executor's contract (Conformance) and its models (testdata).
	Bundle string
	// Directory gets the report and the logs; it is made where there is none.
	Directory string
	// Device is executor.CUDA, executor.CPU, or empty: the first, and without one nothing is computed.
	Device string
	// Python is the interpreter; empty is the first that has torch, best one that sees the GPU.
	Python string
	// Only are the names of steps; empty is all.
	Only []string
	// Limit bounds the whole check; 0 is DefaultLimit. StepLimit bounds each step besides its own limit; 0 does not.
	Limit, StepLimit time.Duration
	// Visible is CUDA_VISIBLE_DEVICES as it was given, nil where it is not set; GPUs that it leaves out are not used, and
	// an empty one leaves out all.
	Visible *string
	// Output is told of each step.
	Output io.Writer
}

// The programs of a bundle beside this one, and the files of a report. WatchCommand and StepCommand are how the program
// is started by itself: what follows the second is the file of a Setup.
const (
	WatchCommand = "watch"
	StepCommand  = "step"

	Inventory   = "gpu-check-nvml"
	Conformance = "conformance"
	ReportJSON  = "report.json"
	ReportText  = "report.md"
)

// cpuPatience is how many times as long steps may take on CPUs, where nothing is judged by its time and other programs
// may take most of it.
const cpuPatience = 10

// logEnd is how much of a failed step's log is in the report, in bytes; the rest is beside it.
const logEnd = 16 << 10

// check is a check that is under way.
type check struct {
	Config
	ended   <-chan struct{} // closed when the check is interrupted
	report  Report
	began   time.Time
	work    string // for what steps write, removed in the end
	spawner *spawn.Spawner
	watch   *watch // of the GPUs; nil where nothing can be watched
	reading device.Reading
	stuck   []int // processes that do not end though they were killed
}

// Run does the steps one after the other and keeps the report. When ctx ends, what is under way is ended, the other
// steps are left out, and the report says so. The error says why there is no check; what steps find wrong is in the
// report.
func Run(ctx context.Context, config Config) (report Report, err error) {
	some, err := chosen(config.Only)
	if err != nil {
		return Report{}, err
	}
	if !slices.Contains([]string{"", executor.CUDA, executor.CPU}, config.Device) {
		return Report{}, fmt.Errorf("device %q; want %s or %s", config.Device, executor.CUDA, executor.CPU)
	}
	if config.Limit == 0 {
		config.Limit = DefaultLimit
	}
	if config.Directory, err = filepath.Abs(config.Directory); err != nil {
		return Report{}, fmt.Errorf("find the directory of the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(config.Directory, "logs"), 0o755); err != nil {
		return Report{}, fmt.Errorf("make the directory of the report: %w; name another", err)
	}
	if err := adopt(); err != nil {
		return Report{}, err
	}
	interrupted := ctx.Done()
	ctx, cancel := context.WithTimeoutCause(ctx, config.Limit, fmt.Errorf("the check is at its limit of %s", config.Limit))
	defer cancel()
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return Report{}, err
	}
	defer spawner.Close()
	work, err := os.MkdirTemp(config.Directory, "work-")
	if err != nil {
		return Report{}, fmt.Errorf("make a directory for what steps write: %w", err)
	}
	c := &check{Config: config, ended: interrupted, began: time.Now(), work: work, spawner: spawner}
	defer func() { err = errors.Join(err, c.watch.end(), c.endSteps(), os.RemoveAll(work)) }()
	c.report = Report{
		Version: config.Version, Started: c.began,
		Machine: Machine{System: runtime.GOOS + "/" + runtime.GOARCH + ", " + system(), Cores: runtime.NumCPU()},
	}
	for _, s := range some {
		c.report.Steps = append(c.report.Steps, Result{Name: s.name, Title: s.title})
	}
	if err := c.prepare(ctx); err != nil {
		return c.report, err
	}
	for i, s := range some {
		c.one(ctx, s, &c.report.Steps[i])
		if err := c.write(); err != nil {
			return c.report, err
		}
	}
	c.report.Interrupted = c.interrupted()
	c.report.Complete = !c.report.Interrupted
	return c.report, c.write()
}

// prepare finds out what there is to work with: the steps that tell of it come again as such, where they are chosen.
func (c *check) prepare(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(c.work, "bin"), 0o755); err != nil {
		return fmt.Errorf("make a directory for Python: %w", err)
	}
	c.readGPUs(ctx)
	c.findPython(ctx)
	return c.write()
}

// one does a step.
func (c *check) one(ctx context.Context, s step, r *Result) {
	began := time.Now()
	defer func() {
		r.Seconds = time.Since(began).Seconds()
		words := r.Why
		if r.Outcome == Skipped && len(r.Notes) > 0 {
			words = r.Notes[len(r.Notes)-1:]
		}
		_, _ = fmt.Fprintf(c.Output, "%-22s %-8s %5.1f s  %s\n", s.name, r.Outcome, r.Seconds, strings.Join(words, "; "))
	}()
	if c.interrupted() && s.name != stepAssigned {
		c.leaveOut(r, "the check was interrupted")
		return
	}
	if lacking := s.lacking(c.report.Machine); lacking != "" {
		r.Outcome, r.Notes = Skipped, []string{lacking}
		return
	}
	left := time.Until(c.began.Add(c.Limit))
	if left < worthStarting && s.needs != nothing && s.name != stepAssigned { // the others take no time
		c.leaveOut(r, fmt.Sprintf("the check is at its limit of %s", c.Limit))
		return
	}
	switch s.name {
	case stepInventory:
		if c.inventory(ctx, r); c.interrupted() { // and so was nvidia-smi
			*r = Result{Name: r.Name, Title: r.Title}
			c.leaveOut(r, "the check was interrupted")
		}
	case stepMachine:
		c.machine(r)
	case stepAssigned:
		c.assigned(r)
	case stepConformance:
		c.conformance(ctx, s, r, executor.Float32)
	case stepBFloat16:
		c.conformance(ctx, s, r, executor.BFloat16)
	case stepFloat16:
		c.conformance(ctx, s, r, executor.Float16)
	default:
		c.body(ctx, s, r)
	}
}

// interrupted reports whether somebody wants an end before the limit of the check.
func (c *check) interrupted() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// leaveOut skips a step that the machine could have done.
func (c *check) leaveOut(r *Result, why string) {
	r.Outcome, r.Notes = Skipped, append(r.Notes, why)
	r.LeftOut = c.report.Machine.Device == executor.CUDA
}

// settle decides the outcome of a step's process, which may have failed by more than its end: what the end of the check
// cut off says nothing of what it checked.
func (c *check) settle(ctx context.Context, r *Result, ended error, failed bool) {
	if ctx.Err() != nil && errors.Is(ended, context.Cause(ctx)) && !failed && len(r.Why) == 0 &&
		!slices.ContainsFunc(r.Figures, Figure.missed) {
		c.leaveOut(r, "it was cut off: "+ended.Error())
		return
	}
	r.settle(ended)
}

// body runs a step of this program in a process of its own.
func (c *check) body(ctx context.Context, s step, r *Result) {
	m := c.report.Machine
	setup := Setup{
		Step: s.name, Result: filepath.Join(c.work, s.name+".json"), Device: m.Device, Python: m.Executable,
		Directory: filepath.Join(c.work, s.name), Memory: m.Memory, BFloat16: m.BFloat16, Report: c.file(ReportJSON),
	}
	file := filepath.Join(setup.Directory, "setup.json")
	self, err := os.Executable()
	if err != nil {
		r.settle(fmt.Errorf("find this program: %w", err))
		return
	}
	if err := errors.Join(os.Mkdir(setup.Directory, 0o755), writeJSON(file, setup)); err != nil {
		r.settle(err)
		return
	}
	ended := c.process(ctx, s, r, setup.Directory, self, StepCommand, file)
	found := Result{}
	if text, err := os.ReadFile(setup.Result); err == nil {
		if err := json.Unmarshal(text, &found); err != nil {
			ended = errors.Join(ended, fmt.Errorf("read what the step found: %w", err))
		}
	}
	r.Figures, r.Notes, r.Trainings = found.Figures, found.Notes, found.Trainings
	r.Outcome, r.Complete = found.Outcome, found.Complete
	c.settle(ctx, r, ended, false)
	c.keepLog(r)
}

// conformance runs the test of the executor's contract.
func (c *check) conformance(ctx context.Context, s step, r *Result, precision executor.Precision) {
	tests := "^TestTheExecutorKeepsTheContract$"
	if c.report.Machine.Device == executor.CPU {
		tests += "/^batchnorm$/parts_train_as_one_does$" // the rest is tried on CPUs where Spillway is built
	}
	ended := c.process(ctx, s, r, c.Bundle, filepath.Join(c.Bundle, Conformance), "-test.v", "-test.run", tests,
		"-test.timeout", "0", "-test.parallel", strconv.Itoa(c.parallel()))
	text, _ := os.ReadFile(c.file(r.LogFile)) // without a log there is an error already
	passed, failed := bytes.Count(text, []byte("--- PASS:")), bytes.Count(text, []byte("--- FAIL:"))
	r.Notes = append(r.Notes, fmt.Sprintf("%d checks passed, %d failed, on %s in %s", passed, failed,
		c.report.Machine.Device, precision))
	if skipped := bytes.Count(text, []byte("--- SKIP:")); skipped > 0 || passed == 0 && ended == nil {
		r.Why = append(r.Why, fmt.Sprintf("%d checks were skipped and %d passed; the log says why", skipped, passed))
	}
	r.Complete = true
	c.settle(ctx, r, ended, failed > 0)
	c.keepLog(r)
}

// parallel is how many models may be tried at the same time: each has up to five processes with a context of half a
// gigabyte on the device.
func (c *check) parallel() int {
	m := c.report.Machine
	if m.Device != executor.CUDA {
		return m.Cores
	}
	return max(1, min(m.Cores, int(m.Memory/(3*quantity.GiB))))
}

// process runs a program as a step: with its limit, its log, and nothing left of it afterwards.
func (c *check) process(ctx context.Context, s step, r *Result, directory, program string, arguments ...string) error {
	r.LogFile = filepath.Join("logs", s.name+".txt")
	log, err := os.Create(c.file(r.LogFile))
	if err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	limit := s.limit
	if c.report.Machine.Device == executor.CPU {
		limit *= cpuPatience
	}
	if c.StepLimit > 0 {
		limit = min(limit, c.StepLimit)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it was killed at its limit of %s", limit))
	defer cancel()
	cmd := exec.Command(program, arguments...) //nolint:noctx // Run ends it with its context
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = directory, append(c.environment(), s.environment(c.report.Machine)...), log,
		log
	if err = c.spawner.Run(ctx, cmd); err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return errors.Join(err, c.endSteps(), log.Close())
}

// endSteps ends what steps left running. What does not end is waited for once.
func (c *check) endSteps() error {
	stuck, err := endAll(append(c.watch.processes(), c.stuck...))
	c.stuck = append(c.stuck, stuck...)
	return err
}

// environment is that of steps: they see the assigned device alone, call the Python that was found python3, and write
// nowhere else than into the directory of the report.
func (c *check) environment() []string {
	m := c.report.Machine
	env := append(os.Environ(), "TMPDIR="+c.work, "PATH="+filepath.Join(c.work, "bin")+":"+os.Getenv("PATH"),
		"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUBLAS_WORKSPACE_CONFIG=:4096:8", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
		"HF_HOME="+c.work, "PYTHONDONTWRITEBYTECODE=1", "SPILLWAY_TEST_REQUIRE=torch")
	if m.Assigned != "" {
		env = append(env, "CUDA_VISIBLE_DEVICES="+m.Assigned)
	}
	return env
}

// environment is what a step has beside that: where and in which precision the contract is tried, in float32 without
// TensorFloat-32.
func (s step) environment(m Machine) []string {
	devices := "SPILLWAY_TEST_DEVICES=" + executor.CPU
	if m.Device == executor.CUDA {
		devices = "SPILLWAY_TEST_DEVICES=cuda:0"
	}
	switch s.name {
	case stepConformance:
		return []string{devices, "SPILLWAY_TEST_PRECISION=" + string(executor.Float32), "NVIDIA_TF32_OVERRIDE=0"}
	case stepBFloat16:
		return []string{devices, "SPILLWAY_TEST_PRECISION=" + string(executor.BFloat16)}
	case stepFloat16:
		return []string{devices, "SPILLWAY_TEST_PRECISION=" + string(executor.Float16)}
	default:
		return nil
	}
}

// keepLog takes the end of a failed step's log into its result.
func (c *check) keepLog(r *Result) {
	if r.Outcome != Failed {
		return
	}
	text, err := os.ReadFile(c.file(r.LogFile))
	if err != nil {
		r.Log = err.Error()
		return
	}
	if len(text) > logEnd {
		text = append([]byte("[...]\n"), text[len(text)-logEnd:]...)
	}
	r.Log = strings.ToValidUTF8(string(bytes.TrimSpace(text)), "?")
}

func (c *check) file(name string) string { return filepath.Join(c.Directory, name) }

// write keeps what is known, with what is known by now of the devices that were touched.
func (c *check) write() error {
	if i := slices.IndexFunc(c.report.Steps, func(r Result) bool { return r.Name == stepAssigned }); i >= 0 &&
		c.report.Steps[i].Seconds == 0 {
		c.assigned(&c.report.Steps[i])
	}
	c.report.Seconds = time.Since(c.began).Seconds()
	return errors.Join(writeJSON(c.file(ReportJSON), c.report),
		replace(c.file(ReportText), []byte(c.report.Markdown())))
}

// system names the distribution and the version of the kernel, as well as files tell.
func system() string {
	name := "unknown system"
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); found {
				name = strings.Trim(value, `"`)
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		name += ", kernel " + strings.TrimSpace(string(text))
	}
	return name
}
